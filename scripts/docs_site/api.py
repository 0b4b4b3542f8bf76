"""The pages of the public names, written from signatures and docstrings.

The source is read and not imported, so types stay as short as they are written there, and no extra has to be installed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe
from scripts.docs_site.docstring import first_sentence, render

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {
    "Recover calls": [
        "holdfast",
        "holdfast.anthropic",
        "holdfast.asgi",
        "holdfast.openai",
        "holdfast.httpx",
        "holdfast.langchain",
        "holdfast.litellm",
        "holdfast.pydantic_ai",
        "holdfast.openai_agents",
        "holdfast.claude_agent",
        "holdfast.mcp",
        "holdfast.compat.tenacity",
        "holdfast.manager",
        "holdfast.runtime",
        "holdfast.runtime.runtime",
    ],
    "Policies": [
        "holdfast.policies",
        "holdfast.policies.budget",
        "holdfast.policies.bulkhead",
        "holdfast.policies.circuit",
        "holdfast.policies.hedge",
        "holdfast.policies.profiles",
        "holdfast.policies.quota",
        "holdfast.policies.rate_limit",
        "holdfast.profiles",
        "holdfast.policies.models",
        "holdfast.policies.models.prices",
        "holdfast.policies.models.prompt_cache",
        "holdfast.policies.models.usage",
        "holdfast.genai_prices",
        "holdfast.config",
        "holdfast.extensions",
    ],
    "Failures": [
        "holdfast.faults",
        "holdfast.classify",
        "holdfast.classify.vocabulary",
        "holdfast.views",
        "holdfast.views.category",
        "holdfast.views.classed",
        "holdfast.views.response",
        "holdfast.views.task",
        "holdfast.views.wire",
    ],
    "Agents": [
        "holdfast.agents",
        "holdfast.tools",
        "holdfast.providers",
        "holdfast.providers.anthropic",
        "holdfast.tasks",
        "holdfast.tasks.stages",
        "holdfast.work",
        "holdfast.workflow",
        "holdfast.transcript",
    ],
    "Durable work": [
        "holdfast.sessions",
        "holdfast.sessions.admin",
        "holdfast.sessions.history",
        "holdfast.sessions.later",
        "holdfast.sessions.parked_runs",
        "holdfast.sessions.questions",
        "holdfast.sessions.retention",
        "holdfast.sessions.transfer",
        "holdfast.stores",
    ],
    "Supervision": ["holdfast.actors", "holdfast.actors.bash", "holdfast.actors.messages", "holdfast.supervision"],
    "The bridge": [
        "holdfast.bridge",
        "holdfast.bridge.error_reports",
        "holdfast.bridge.access.lockout",
        "holdfast.bridge.settings",
        "holdfast.bridge.access.tls",
        "holdfast.bridge.access.tokens",
    ],
    "Watching": [
        "holdfast.events",
        "holdfast.events.lines",
        "holdfast.journal",
        "holdfast.sinks",
        "holdfast.policies.alerts",
        "holdfast.live",
    ],
    "Testing": [
        "holdfast.testing",
        "holdfast.testing.crashtest",
        "holdfast.testing.postgres",
        "holdfast.testing.redis",
        "holdfast.testing.provider",
        "holdfast.testing.proxy",
        "holdfast.testing.stores",
        "holdfast.clock",
    ],
    "The five documents": [f"holdfast.documents.{name}" for name in ("bridge", "spec016", "stud", "task", "actor")],
}
"""What users import from, in the order of the site. A name that several modules offer is described in the first of them."""
RETURNED = {
    "holdfast": {
        "holdfast.runtime.recover.Recovery": ("__call__", "call", "outcome", "stream", "__aiter__", "__iter__"),
        "holdfast.runtime.decorated.AsyncRecovered": (
            *("__call__", "outcome", "fallback", "cached", "degraded", "notify", "repair", "steps"),
        ),
        "holdfast.runtime.decorated.Recovered": (
            *("__call__", "outcome", "fallback", "cached", "degraded", "notify", "repair", "steps"),
        ),
        "holdfast.runtime.streams.stream.StreamOf": ("__call__", "fallback"),
        "holdfast.runtime.streams.stream.Stream": ("partial", "restarts"),
        "holdfast.runtime.streams.stream.BlockingStream": ("partial", "restarts"),
        "holdfast.runtime.blocks.BlockAttempt": ("number",),
        "holdfast.runtime.bus.Subscription": ("cancel",),
        "holdfast.runtime.bus.EventStream": ("aclose",),
        "holdfast.sessions.keyed_step.KeyedStep": ("step", "is_stored", "has_begun"),
        "holdfast.sessions.later.LaterSteps": ("step",),
    },
}
"""Classes of what public functions return, by the module that describes them, with the members that users call.

Nobody has to import them.
"""
_LONGEST_VALUE = 400
_UNTYPED = "_Untyped"
"""A class of our source that an argument of type `Any` fits, and nothing else. Its overloads are for type checkers alone."""


class Api:
    """The public names of the package, and the pages that describe them."""

    def __init__(self, source: Path = SOURCE) -> None:
        self._package = griffe.load("holdfast", search_paths=[source], try_relative_path=False)
        self.homes: dict[str, str] = {}
        """Where each thing is described, by the path at which the source defines it: `holdfast.stores.Store`."""
        self.names: dict[str, str] = {}
        """Every public name, such as `holdfast.stores.Store`, and the address of its description."""
        for module in (module for group in MODULES.values() for module in group):
            for name in self.exports(module):
                thing = self._thing(module, name)
                home = self.homes.setdefault(thing.path, f"{module}.{name}")
                self.names[f"{module}.{name}"] = f"{page_of(home.rpartition('.')[0])}#{home}"
        for module, paths in RETURNED.items():
            for path in paths:
                self.homes[path] = path
                self.names[path] = f"{page_of(module)}#{path}"

    def exports(self, module: str) -> list[str]:
        """Return the names that a module offers, without those of its own modules and the version."""
        found = [str(name) for name in self._module(module).exports or ()]
        return [name for name in found if name != "__version__" and not self._thing(module, name).is_module]

    def pages(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the text of each page, the index first."""
        yield "reference/api/README.md", self._index()
        for modules in MODULES.values():
            for module in modules:
                yield page_of(module), self._page(module)

    def _module(self, path: str) -> Any:
        return self._package[path.partition(".")[2]] if "." in path else self._package

    def _thing(self, module: str, name: str) -> Any:
        offering = self._module(module)
        found = offering[name]
        if found.is_module and offering.imports.get(name, found.path) != found.path:
            # A module in the package has the same name, but the package imports this name from another place.
            found = self._module(offering.imports[name])
        return found.final_target if found.is_alias else found

    def _index(self) -> str:
        lines = [
            "# Public names",
            "",
            "Every name that you may import, by module. What is not listed here may change in any release.",
        ]
        for group, modules in MODULES.items():
            lines += ["", f"## {group}", "", "| module | what it offers |", "|---|---|"]
            for module in modules:
                names = ", ".join(
                    f"[`{name}`]({_beside(self.names[f'{module}.{name}'])})" for name in self.exports(module)
                )
                lines.append(f"| [`{module}`]({_beside(page_of(module))}) | {names} |")
        return "\n".join(lines) + "\n"

    def _page(self, module: str) -> str:
        found = self._module(module)
        parts = [f"# `{module}`", render(_doc(found))]
        elsewhere = []
        for name in self.exports(module):
            thing = self._thing(module, name)
            home = self.homes[thing.path]
            if home == f"{module}.{name}":
                parts += self._entry(home, name, thing)
            else:
                link = _beside(self.names[home])
                about = first_sentence(_doc(thing))
                elsewhere.append(
                    f"| [`{name}`]({link}) | `{home.rpartition('.')[0]}` | {about.replace('|', '&#124;')} |"
                )
        if module in RETURNED:
            parts += ["## What these functions return", "You get these objects and need not import their classes."]
        for path, members in RETURNED.get(module, {}).items():
            parts += self._returned(path, members)
        parts += self._types(module)
        if elsewhere:
            parts += ["## Described elsewhere", "\n".join(["| name | in | |", "|---|---|---|", *elsewhere])]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _entry(self, path: str, name: str, thing: Any) -> list[str]:
        parts = [f"## `{name}` {{ #{path} }}"]
        doc = _doc(thing)
        if thing.is_function:
            return [*parts, _code(_signatures(name, thing)), render(doc, _parameters(thing)), self._returns(thing)]
        if thing.is_class:
            return [*parts, *self._class(path, name, thing, doc)]
        return [*parts, _code(_assigned(name, thing)), render(doc)]

    def _class(self, path: str, name: str, thing: Any, doc: str) -> Iterator[str]:
        made = thing.members.get("__init__") or thing.members.get("__new__")
        bases = [str(base) for base in thing.bases if str(base) not in {"object", "Protocol"}]
        yield _code(_signatures(name, made) if made and made.is_function else f"class {name}({', '.join(bases)})")
        fields = [member for member in thing.members.values() if member.is_attribute and _public(member)]
        yield render(
            doc, (_parameters(made) if made and made.is_function else set()) | {field.name for field in fields}
        )
        rows = [self._field(field) for field in fields if "property" not in field.labels]
        if rows:
            yield "\n".join(["| field | default | |", "|---|---|---|", *rows])
        properties = [field for field in fields if "property" in field.labels]
        methods = [member for member in thing.members.values() if member.is_function and _public(member)]
        for member in (*properties, *methods):
            yield from _member(path, name, member)
        inherited = self._inherited(thing)
        if inherited:
            yield inherited

    def _returned(self, path: str, members: tuple[str, ...]) -> Iterator[str]:
        """Describe a class that is returned, with its listed members."""
        thing = self._module(path)
        yield f"### `{thing.name}` {{ #{path} }}"
        yield render(_doc(thing))
        for name in members:
            found = next(kind.members[name] for kind in (thing, *thing.mro()) if name in kind.members)
            yield from _member(path, thing.name, found, "####")

    def _returns(self, function: Any) -> str:
        """Link the classes of what a function returns, if they are described only for that."""
        returned = {path for paths in RETURNED.values() for path in paths}
        names = [name for one in _shown(function) for name in re.findall(r"\w+", str(one.returns))]
        kinds = [self._resolved(function, name) for name in dict.fromkeys(names)]
        links = [
            f"[`{kind.name}`]({_beside(self.names[kind.path])})" for kind in kinds if kind and kind.path in returned
        ]
        return f"It returns {' or '.join(links)}." if links else ""

    def _types(self, module: str) -> Iterator[str]:
        """Describe the types that the signatures of a page name, but that nobody has to import."""
        own = (self._thing(module, name) for name in self.exports(module))
        things = [thing for thing in own if self.homes[thing.path].rpartition(".")[0] == module]
        things += [self._module(path) for path in RETURNED.get(module, ())]
        found: dict[str, Any] = {}
        for thing in things:
            self._collect(thing, found, RETURNED.get(module, {}).get(thing.path))
        if found:
            yield "## Types in these signatures"
            yield "Type checkers know these names. You need not import them."
        for thing in sorted(found.values(), key=lambda thing: (thing.name, thing.path)):
            yield f"### `{thing.name}` {{ #{thing.path} }}"
            if thing.is_class:
                yield render(_doc(thing))
                yield "\n".join(["| field | default | |", "|---|---|---|", *map(self._field, _fields(thing))])
            else:
                yield _code(f"{thing.name} = {_unquoted(thing.value)}")
                yield render(_doc(thing))

    def _collect(self, thing: Any, found: dict[str, Any], members: tuple[str, ...] | None = None) -> None:
        """Add the types that a thing's annotations name, and those that these types name."""
        for scope, text in _annotations(thing, members):
            for name in re.findall(r"(?<![\w.'])[A-Za-z_]\w*(?!')", text):
                kind = self._resolved(scope, name)
                if kind is None or kind.path in found or kind.path in self.homes or not _is_plain_type(kind):
                    continue
                found[kind.path] = kind
                self._collect(kind, found)

    def _resolved(self, scope: Any, name: str) -> Any:
        """Return the thing of ours that a name means where it is written, or None."""
        try:
            package, _, path = scope.resolve(name).partition(".")
            found = self._package[path] if package == "holdfast" and path else None
        except (griffe.NameResolutionError, griffe.AliasResolutionError, griffe.CyclicAliasError, KeyError):
            return None
        return found.final_target if found is not None and found.is_alias else found

    def _field(self, field: Any) -> str:
        text = " ".join(field.docstring.value.split()) if field.docstring else ""
        default = f"`{_default(field.value, field.parent)}`" if field.value is not None else ""
        kind = f"<br>{self._kind(field)}" if field.annotation is not None else ""
        return f"| `{field.name}`{_cell(kind)} | {_cell(default)} | {_cell(text)} |"

    def _kind(self, field: Any) -> str:
        """Return a field's type as text. A single name is a link to what it means here, or the values that it allows."""
        text = str(field.annotation)
        kind = self._resolved(field.parent, text) if text.isidentifier() else None
        if kind is None:
            return f"`{text}`"
        if home := self.homes.get(kind.path):
            return f"[`{text}`]({_beside(self.names[home])})"
        if _is_plain_type(kind) and kind.is_attribute and "Literal[" in str(kind.value):
            return f"`{_unquoted(kind.value)}`"
        # As HTML: in backquotes a name becomes a link to the public thing of that name, which is another one.
        return f"<code>{text}</code>"

    def _inherited(self, thing: Any) -> str:
        """Name the public members that a class has from a base of ours, with a link to the base if it is public."""
        lines = []
        for base in thing.mro():
            names = [member.name for member in base.members.values() if _public(member) and not member.is_module]
            own = [name for name in names if name not in thing.members]
            if own and base.path.startswith("holdfast."):
                home = self.homes.get(base.path)
                shown = f"[`{base.name}`]({_beside(self.names[home])})" if home else f"`{base.name}`"
                lines.append(f"From {shown}: {', '.join(f'`{name}`' for name in own)}.")
        return "\n\n".join(lines)


def _doc(thing: Any) -> str:
    return thing.docstring.value if thing.docstring else ""


def page_of(module: str) -> str:
    """Return the address of a module's page."""
    return f"reference/api/{module}.md"


def _beside(address: str) -> str:
    """Return an address as a page of the same folder links to it."""
    return address.removeprefix("reference/api/")


def _public(member: Any) -> bool:
    return not member.name.startswith("_") and (member.is_alias is False)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _parameters(function: Any) -> set[str]:
    return {parameter.name for parameter in function.parameters}


def _member(path: str, name: str, member: Any, level: str = "###") -> Iterator[str]:
    """Describe a method, a property or an attribute of a class."""
    if member.is_function:
        yield f"{level} `{name}.{member.name}()` {{ #{path}.{member.name} }}"
        yield _code(_signatures(member.name, member))
        yield render(_doc(member), _parameters(member))
    else:
        yield f"{level} `{name}.{member.name}` {{ #{path}.{member.name} }}"
        if member.annotation is not None:
            yield _code(f"{member.name}: {member.annotation}")
        yield render(_doc(member))


def _annotations(thing: Any, members: tuple[str, ...] | None = None) -> Iterator[tuple[Any, str]]:
    """Yield each annotation of a thing that its description shows, with the scope in which its names are looked up."""
    if thing.is_function:
        for function in _shown(thing):
            yield from ((function, str(found.annotation)) for found in function.parameters if found.annotation)
            yield function, str(function.returns)
    elif thing.is_class:
        for member in (member for kind in (thing, *thing.mro()) for member in kind.members.values()):
            is_shown = (
                _public(member) or member.name == "__init__"
                if members is None
                else member.name in members and not member.is_alias
            )
            if is_shown and member.is_function:
                yield from _annotations(member)
            elif is_shown and member.is_attribute:
                yield member.parent, str(member.annotation)
    elif thing.value is not None:
        yield thing.parent, _unquoted(thing.value)


def _is_plain_type(thing: Any) -> bool:
    """Tell whether a thing is a type that is described by its values: an alias, or a TypedDict of options."""
    if thing.is_class:
        return any(str(base) == "TypedDict" for kind in (thing, *thing.mro()) for base in kind.bases)
    is_alias = thing.is_attribute and thing.value is not None and not thing.name.isupper() and thing.parent.is_module
    return bool(is_alias) and not re.match(r"TypeVar|ParamSpec|[\w.]+\(|\d", str(thing.value))


def _fields(thing: Any) -> Iterator[Any]:
    """Yield the fields of a TypedDict, those of its bases first."""
    for kind in (*reversed(thing.mro()), thing):
        yield from (member for member in kind.members.values() if member.is_attribute and _public(member))


def _unquoted(value: Any) -> str:
    """Return an alias as text. One that names later things is written as a string in the source."""
    text = str(value)
    return text[1:-1] if text[0] == text[-1] and text[0] in "'\"" else text


def _shown(function: Any) -> list[Any]:
    """Return the overloads of a function that a caller can choose, or the function itself if it has none."""
    overloads = function.overloads or ()
    chosen = [one for one in overloads if all(_UNTYPED not in str(part.annotation) for part in one.parameters)]
    return chosen or [function]


def _signatures(name: str, function: Any) -> str:
    """Return the signatures that a caller can choose from, one below the other."""
    return "\n".join(dict.fromkeys(_signature(name, found) for found in _shown(function)))


def _signature(name: str, function: Any) -> str:
    """Return a signature as it is written in the source, one parameter to a line if it is long."""
    shown = [text for text in _written(function) if text.partition(":")[0] not in {"self", "cls"}]
    arrow = f" -> {function.returns}" if function.returns and not name[0].isupper() else ""
    start = "async " if "async" in function.labels else ""
    line = f"{start}{name}({', '.join(shown)}){arrow}"
    if len(line) <= 90:
        return line
    rows = "".join(f"    {text},\n" for text in shown)
    return f"{start}{name}(\n{rows}){arrow}"


def _written(function: Any) -> Iterator[str]:
    kinds = griffe.ParameterKind
    starred = False
    before = None
    for parameter in function.parameters:
        if before is not None and before.kind is kinds.positional_only and parameter.kind is not kinds.positional_only:
            yield from () if before.name in {"self", "cls"} else ["/"]
        before = parameter
        if parameter.kind is kinds.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        starred = starred or stars == "*"
        text = f"{stars}{parameter.name}"
        text += f": {parameter.annotation}" if parameter.annotation is not None else ""
        if parameter.default is not None and not stars:
            default = _default(parameter.default, function)
            text += f" = {default}" if parameter.annotation is not None else f"={default}"
        yield text
    if before is not None and before.kind is kinds.positional_only and before.name not in {"self", "cls"}:
        yield "/"


def _default(value: Any, scope: Any) -> str:
    """Return a default as text. A constant is shown as the number or text that it stands for."""
    text = str(value)
    if not text.isidentifier() or text in {"None", "True", "False"}:
        return text
    try:
        found = scope.module.package[scope.resolve(text).partition(".")[2]]
    except (griffe.NameResolutionError, KeyError):
        return text
    constant = found.final_target if found.is_alias else found
    is_plain = constant.is_attribute and re.fullmatch(r"[\d._]+|'.*'", str(constant.value))
    return str(constant.value) if is_plain else text


def _assigned(name: str, attribute: Any) -> str:
    value = str(attribute.value) if attribute.value is not None else "…"
    if len(value) > _LONGEST_VALUE:
        value = f"{value[: _LONGEST_VALUE // 4].rpartition(',')[0]}, …"
    return f"{name} = {value}"


def _cell(text: str) -> str:
    """Escape bars, which would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)
