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
        "holdfast.bridge.lockout",
        "holdfast.bridge.settings",
        "holdfast.bridge.tls",
        "holdfast.bridge.tokens",
    ],
    "Watching": [
        "holdfast.events",
        "holdfast.events.lines",
        "holdfast.sinks",
        "holdfast.policies.alerts",
        "holdfast.live",
    ],
    "Testing": [
        "holdfast.testing",
        "holdfast.testing.crashtest",
        "holdfast.testing.postgres",
        "holdfast.testing.provider",
        "holdfast.testing.proxy",
        "holdfast.testing.stores",
        "holdfast.clock",
    ],
}
"""What users import from, in the order of the site. A name that several modules offer is described in the first of them."""
_LONGEST_VALUE = 400


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
        if elsewhere:
            parts += ["## Described elsewhere", "\n".join(["| name | in | |", "|---|---|---|", *elsewhere])]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _entry(self, path: str, name: str, thing: Any) -> list[str]:
        parts = [f"## `{name}` {{ #{path} }}"]
        doc = _doc(thing)
        if thing.is_function:
            return [*parts, _code(_signature(name, thing)), render(doc, _parameters(thing))]
        if thing.is_class:
            return [*parts, *self._class(path, name, thing, doc)]
        return [*parts, _code(_assigned(name, thing)), render(doc)]

    def _class(self, path: str, name: str, thing: Any, doc: str) -> Iterator[str]:
        made = thing.members.get("__init__") or thing.members.get("__new__")
        bases = [str(base) for base in thing.bases if str(base) not in {"object", "Protocol"}]
        yield _code(_signature(name, made) if made and made.is_function else f"class {name}({', '.join(bases)})")
        fields = [member for member in thing.members.values() if member.is_attribute and _public(member)]
        yield render(
            doc, (_parameters(made) if made and made.is_function else set()) | {field.name for field in fields}
        )
        rows = [_field(field) for field in fields if "property" not in field.labels]
        if rows:
            yield "\n".join(["| field | default | |", "|---|---|---|", *rows])
        properties = [field for field in fields if "property" in field.labels]
        methods = [member for member in thing.members.values() if member.is_function and _public(member)]
        for member in (*properties, *methods):
            text = _doc(member)
            if member.is_function:
                yield f"### `{name}.{member.name}()` {{ #{path}.{member.name} }}"
                yield _code(_signature(member.name, member))
                yield render(text, _parameters(member))
            else:
                yield f"### `{name}.{member.name}` {{ #{path}.{member.name} }}"
                yield _code(f"{member.name}: {member.annotation}")
                yield render(text)
        inherited = self._inherited(thing)
        if inherited:
            yield inherited

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


def _signature(name: str, function: Any) -> str:
    """Return a signature as it is written in the source, one parameter to a line if it is long."""
    shown = [text for text in _written(function) if text not in {"self", "cls"}]
    arrow = f" -> {function.returns}" if function.returns and name[0].islower() else ""
    start = "async " if "async" in function.labels else ""
    line = f"{start}{name}({', '.join(shown)}){arrow}"
    if len(line) <= 90:
        return line
    rows = "".join(f"    {text},\n" for text in shown)
    return f"{start}{name}(\n{rows}){arrow}"


def _written(function: Any) -> Iterator[str]:
    kinds = griffe.ParameterKind
    starred = False
    for parameter in function.parameters:
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


def _field(field: Any) -> str:
    text = " ".join(field.docstring.value.split()) if field.docstring else ""
    default = f"`{_default(field.value, field.parent)}`" if field.value is not None else ""
    kind = f"<br>`{field.annotation}`" if field.annotation is not None else ""
    return f"| `{field.name}`{_cell(kind)} | {_cell(default)} | {_cell(text)} |"


def _cell(text: str) -> str:
    """Escape bars, which would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)
