"""The generated tables: codes, commands, settings, events and metrics. Each is read from the thing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import typer.main
from prometheus_client import CollectorRegistry
from scripts.docs_site.docstring import first_sentence

from holdfast.cli.app import app
from holdfast.config import json_schema
from holdfast.events import records
from holdfast.faults import CATALOG
from holdfast.runtime import page_of
from holdfast.sinks.conventions import ERROR_TYPE, SESSION_ID, Ours
from holdfast.sinks.prometheus import count_errors, count_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

    from holdfast.faults import Entry

_LAYERS = {
    "PROVIDER": "The provider of a model",
    "CONN": "Connections",
    "AUTH": "Access",
    "TOOL": "Tools",
    "TASK": "Tasks and workflows",
    "SESS": "Sessions",
    "ACTOR": "Actors",
    "CIRCUIT": "Circuits",
    "SYS": "This process and its limits",
    "PROTO": "The bridge's protocol",
    "HOOK": "Hooks",
    "CONFIG": "Settings",
}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the text of the list of codes, and of each code's page."""
    yield "reference/error-codes.md", _code_list()
    for code, entry in CATALOG.items():
        title, _, rest = page_of(code).partition("\n")
        yield f"reference/errors/{code}.md", f"{title}\n\n{_facts(entry)}\n{rest}{_aliases(entry)}"


def _code_list() -> str:
    parts = [
        "# Error codes",
        "Every failure has one code. `holdfast explain CODE` shows the same pages in a terminal, without a network.",
        "It also takes what you have: a status, a provider's error, an exception class or a traceback.",
    ]
    for prefix, title in _LAYERS.items():
        rows = [
            (f"[`{code}`](errors/{code}.md)", entry.user, "yes" if entry.retryable else "no", entry.next_actor.value)
            for code, entry in CATALOG.items()
            if code.partition("_")[0] == prefix
        ]
        parts += [f"## {title}", table(("code", "what people read", "retried", "who acts next"), rows)]
    return "\n\n".join(parts) + "\n"


def _facts(entry: Entry) -> str:
    retried = "retried" if entry.retryable else "not retried"
    facts = [
        f"**{entry.kind.value}**, {retried} by default",
        f"next to act: {entry.next_actor.value}",
        f"affects: {entry.scope.value}",
        f"severity: {entry.severity.value}",
        f"HTTP {entry.http_status}",
        f"exit code {entry.exit_code}",
    ]
    return f"{' · '.join(facts)} · [all codes](../error-codes.md)"


def _aliases(entry: Entry) -> str:
    names = ", ".join(f"`{alias}`" for alias in entry.aliases)
    return f"\n## Also called\n\n{names}\n" if names else ""


def commands() -> tuple[str, str]:
    """Return the address and the text of the page of commands."""
    parts = [
        "# Commands and their options",
        "Written from the program itself. [Command line](cli.md) says what they are for. Every command takes `--help`.",
    ]
    for words, command in _walk(typer.main.get_command(app), ("holdfast",)):
        rows = [
            (f"`{_flags(option)}`", _default(option), " ".join((getattr(option, "help", "") or "").split()))
            for option in command.params
            if "--help" not in option.opts and not getattr(option, "hidden", False)
        ]
        parts += [f"## `{' '.join(words)}`", " ".join((command.help or "").split())]
        if rows:
            parts.append(table(("argument or option", "default", ""), rows))
    return "reference/commands.md", "\n\n".join(part for part in parts if part) + "\n"


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    children = getattr(command, "commands", {})
    if not children:
        yield words, command
    for name, child in children.items():
        if not child.hidden:
            yield from _walk(child, (*words, name))


def _flags(option: click.Parameter) -> str:
    if option.param_type_name == "argument":
        return str(option.metavar or option.name).upper()
    return ", ".join([*option.opts, *option.secondary_opts])


def _default(option: click.Parameter) -> str:
    value = option.default
    if (
        value is None
        or callable(value)
        or option.param_type_name == "argument"
        or not isinstance(value, str | int | float)
    ):
        return ""
    return "" if value is False or value == "" else f"`{value}`" if value is not True else "on"


def settings() -> tuple[str, str]:
    """Return the address and the text of the page of settings."""
    schema = json_schema()
    parts = [
        "# Settings, one by one",
        "Written from the schema. [Settings](config.md) says which file is read and what wins. `[targets.NAME]` takes what `[policy]` takes.",
    ]
    parts += ["## At the top of the file", _keys(schema)]
    for name, definition in schema["$defs"].items():
        parts += [f"## {name}", _keys(definition)]
    return "reference/settings.md", "\n\n".join(parts) + "\n"


def _keys(value: dict[str, Any]) -> str:
    rows = [(f"`{key}`", *_value(found)) for key, found in value["properties"].items()]
    return table(("key", "values", "default", ""), rows)


def _value(value: dict[str, Any]) -> tuple[str, str, str]:
    default = value.get("default")
    shown = "" if default is None or isinstance(default, dict | list) else f"`{msgspec.json.encode(default).decode()}`"
    return _kinds(value), shown, " ".join(str(value.get("description", "")).split())


def _kinds(value: dict[str, Any]) -> str:
    if "enum" in value or "const" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value or "oneOf" in value:
        return ", ".join(dict.fromkeys(_kinds(one) for one in value.get("anyOf") or value["oneOf"]))
    kind = value.get("type", "any")
    if isinstance(value.get("additionalProperties"), dict):
        return f"a table of {_kinds(value['additionalProperties'])}, by name"
    return {"object": "a table", "array": "a list"}.get(kind, str(kind))


def events() -> tuple[str, str]:
    """Return the address and the text of the page of events."""
    parts = [
        "# Events, one by one",
        "Written from the records. [Events](events.md) says how to read them.",
        "Every event also has `at`, `run`, `operation`, `session`, `turn`, `step` and `v`.",
    ]
    kinds = sorted(get_args(records.Event), key=lambda kind: str(kind.__struct_config__.tag))
    common = set.intersection(*(set(kind.__struct_encode_fields__) for kind in kinds))
    rows = [
        (
            f"`{kind.__struct_config__.tag}`",
            f"[`{kind.__name__}`](api/holdfast.events.md#holdfast.events.{kind.__name__})",
            first_sentence(kind.__doc__ or ""),
            ", ".join(f"`{name}`" for name in kind.__struct_encode_fields__ if name not in common),
        )
        for kind in kinds
    ]
    parts.append(table(("type", "record", "", "fields in JSON"), rows))
    return "reference/event-types.md", "\n\n".join(parts) + "\n"


def metrics() -> tuple[str, str]:
    """Return the address and the text of the page of metrics."""
    registry = CollectorRegistry()
    with count_events(registry):
        count_errors(registry)
        rows = [
            (f"`{_series(family)}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation)
            for collector in list(registry._collector_to_names)  # noqa: SLF001 - a registry does not show its collectors
            for family, labels in ((next(iter(collector.describe())), collector._labelnames),)  # noqa: SLF001
        ]
    ours = [f"`{value}`" for name, value in vars(Ours).items() if name.isupper()]
    text = f"""\
# Metrics and span attributes

Written from the sinks. [See what recovers](../how-to/see-recoveries.md) says how to switch them on. No label is a run, a session or a text.

## Prometheus

{table(("metric", "type", "labels", ""), rows)}

A [bridge](../how-to/hooks.md#metrics-and-alerts) also has the gauges `holdfast_bridge_connections`, `holdfast_bridge_sessions` and
`holdfast_bridge_joined`.

## OpenTelemetry

Spans have `{ERROR_TYPE}` (the code), `{SESSION_ID}`, the `gen_ai.*` attributes that the conventions name, and our own: {", ".join(ours)}.
"""
    return "reference/metrics.md", text


def _series(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)
