"""What the real providers do otherwise than the fault provider: `make live`, with keys of your own.

A short list of calls is made to each provider whose key is set (ANTHROPIC_API_KEY, OPENAI_API_KEY, XAI_API_KEY), and the same calls to the
fault provider in memory. What differs is printed: fields and their types, events of a stream, reasons to stop, statuses, and how the
classifier reads an error. Contents and keys are never printed. About ten small calls for each provider, less than a cent.

Other addresses: ANTHROPIC_BASE_URL, OPENAI_BASE_URL, XAI_BASE_URL. Other models: LIVE_ANTHROPIC_MODEL, LIVE_OPENAI_MODEL, LIVE_XAI_MODEL.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2

from holdfast.classify import from_http
from holdfast.testing import FaultProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["main"]

TIMEOUT_S = 60.0
WRONG_KEY, NO_MODEL = "wrong-key-of-make-live", "no-such-model-of-make-live"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
# What differs from call to call, or from model to model, and what is no part of a protocol.
_IGNORED = frozenset({"created", "created_at", "system_fingerprint", "service_tier"})


class Call(NamedTuple):
    """One call: its name, its body, and what the fault provider must be told so that it fails in the same way."""

    name: str
    path: str
    body: dict[str, Any]
    script: str = ""
    key: str = ""


class Provider(NamedTuple):
    """A provider: where it is, and which calls are made."""

    name: str
    key: str
    url: str
    model: str
    headers: Callable[[str], dict[str, str]]
    calls: Callable[[str], list[Call]]


class Answer(NamedTuple):
    """What is compared of an answer."""

    status: int
    code: str
    """The code of its fault; empty for a good answer."""
    facts: frozenset[str]
    """Fields with their types, events, reasons to stop."""


def _anthropic(model: str) -> list[Call]:
    path = "/v1/messages"
    base = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "Say OK."}]}
    tools = [{"name": "weather", "description": "The weather of a city.", "input_schema": PARAMETERS}]
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]}
    forced = {**base, "tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}
    return [
        Call("a text", path, base),
        Call("a streamed text", path, {**base, "stream": True}),
        Call("a tool call", path, forced),
        Call("a streamed tool call", path, {**forced, "stream": True}),
        Call("a wrong key", path, base, "auth, loop", WRONG_KEY),
        Call("an unknown model", path, {**base, "model": NO_MODEL}, "not-found, loop"),
        Call(
            "a call without its result",
            path,
            {**base, "tools": tools, "messages": [*base["messages"], use, *base["messages"]]},
        ),
        Call(
            "an input that is text",
            path,
            {**base, "tools": tools, "messages": [*base["messages"], _with_input(use, "{}"), _result()]},
        ),
    ]


def _with_input(use: Mapping[str, Any], given: Any) -> dict[str, Any]:
    return {**use, "content": [{**use["content"][0], "input": given}]}


def _result() -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]}


def _openai(model: str) -> list[Call]:
    path = "/responses"
    question = {"role": "user", "content": "Say OK."}
    base = {"model": model, "max_output_tokens": 512, "input": [question], "store": False}
    tools = [{"type": "function", "name": "weather", "description": "", "parameters": PARAMETERS, "strict": True}]
    forced = {**base, "tools": tools, "tool_choice": {"type": "function", "name": "weather"}}
    open_call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    return [
        Call("a text", path, base),
        Call("a streamed text", path, {**base, "stream": True}),
        Call("a tool call", path, forced),
        Call("a streamed tool call", path, {**forced, "stream": True}),
        Call("a wrong key", path, base, "auth, loop", WRONG_KEY),
        Call("an unknown model", path, {**base, "model": NO_MODEL}, "not-found, loop"),
        Call("a call without its result", path, {**base, "input": [question, open_call, question]}),
    ]


def _xai(model: str) -> list[Call]:
    path = "/chat/completions"
    question = {"role": "user", "content": "Say OK."}
    base = {"model": model, "max_completion_tokens": 512, "messages": [question]}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    function = {"name": "weather", "description": "", "parameters": PARAMETERS}
    forced = {**base, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return [
        Call("a text", path, base),
        Call("a streamed text", path, {**base, **streamed}),
        Call("a tool call", path, forced),
        Call("a streamed tool call", path, {**forced, **streamed}),
        Call("a wrong key", path, base, "auth, loop", WRONG_KEY),
        Call("an unknown model", path, {**base, "model": NO_MODEL}, "not-found, loop"),
    ]


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _providers(environment: Mapping[str, str]) -> list[Provider]:
    """Return the providers whose key is set."""

    def model(name: str, usual: str) -> str:
        return environment.get(f"LIVE_{name.upper()}_MODEL") or usual

    def url(name: str, usual: str) -> str:
        return (environment.get(f"{name.upper()}_BASE_URL") or usual).rstrip("/")

    def key(name: str) -> str:
        return environment.get(f"{name.upper()}_API_KEY", "")

    def versioned(given: str) -> dict[str, str]:
        return {"x-api-key": given, "anthropic-version": "2023-06-01"}

    listed = [
        Provider("anthropic", key("anthropic"), url("anthropic", "https://api.anthropic.com"),
                 model("anthropic", "claude-haiku-4-5"), versioned, _anthropic),
        Provider("openai", key("openai"), url("openai", "https://api.openai.com/v1"),
                 model("openai", "gpt-5-mini"), _bearer, _openai),
        Provider("xai", key("xai"), url("xai", "https://api.x.ai/v1"), model("xai", "grok-4"), _bearer, _xai),
    ]  # fmt: skip
    return [one for one in listed if one.key]


def _fields(value: Any, where: str = "") -> Iterator[str]:
    """Yield the fields of a JSON value with their types. Fields that are null say nothing: one side may leave them out."""
    match value:
        case dict():
            kind = value.get("type")
            here = f"{where}<{kind}>" if isinstance(kind, str) else where
            for name, inner in value.items():
                if name in _IGNORED:
                    continue
                yield from _fields(inner, f"{here}.{name}" if here else name)
        case list():
            for inner in value:
                yield from _fields(inner, f"{where}[]")
        case None:
            return
        case bool():
            yield f"{where}: boolean"
        case int() | float():
            yield f"{where}: number"
        case _:
            last = where.rpartition(".")[2]
            # Words of the protocol are compared, texts of the model are not.
            yield (
                f"{where}: {value}"
                if last in {"stop_reason", "finish_reason", "status", "object", "role"}
                else f"{where}: text"
            )


def _events(text: str) -> Iterator[str]:
    """Yield the fields of the events of a stream."""
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            yield "[DONE]"
            continue
        yield from _fields(json.loads(data))


async def _ask(http: httpx2.AsyncClient, url: str, provider: Provider, call: Call) -> Answer:
    headers = provider.headers(call.key or provider.key)
    answer = await http.post(f"{url}{call.path}", json=call.body, headers=headers, timeout=TIMEOUT_S)
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    try:
        facts = frozenset(_events(answer.text) if is_stream else _fields(answer.json()))
    except ValueError:
        facts = frozenset({"a body that is no JSON"})
    failed = answer.status_code >= 400
    code = from_http(answer.status_code, answer.headers, answer.text, provider=provider.name).code if failed else ""
    # The words of an error are the classifier's subject, and it has read them.
    return Answer(answer.status_code, code, frozenset() if failed else facts)


async def _compare(provider: Provider, call: Call) -> list[str]:
    """Make a call to both sides; return what differs."""
    played = FaultProvider(call.script)
    at = "http://provider.test" if provider.name == "anthropic" else "http://provider.test/v1"
    async with httpx2.AsyncClient() as real, httpx2.AsyncClient(transport=played.transport()) as scripted:
        there, here = await _ask(real, provider.url, provider, call), await _ask(scripted, at, provider, call)
    differences = []
    if (there.status, there.code) != (here.status, here.code):
        shown = [f"{one.status} {one.code}".strip() for one in (there, here)]
        differences.append(f"answers {shown[0]}; the fault provider {shown[1]}")
    if there.status == here.status:
        differences += [f"has {fact}; the fault provider does not" for fact in sorted(there.facts - here.facts)]
        differences += [f"does not have {fact}; the fault provider does" for fact in sorted(here.facts - there.facts)]
    return differences


async def _run(providers: list[Provider]) -> int:
    differences = failures = 0
    for provider in providers:
        print(f"{provider.name} ({provider.model})")
        for call in provider.calls(provider.model):
            try:
                found = await _compare(provider, call)
            except httpx2.HTTPError as error:
                failures += 1
                print(f"  {call.name}: no answer ({type(error).__name__})")
                continue
            differences += len(found)
            print(f"  {call.name}: {'the same' if not found else ''}".rstrip())
            for line in found:
                print(f"    {line}")
    print(f"{differences} differences, {failures} calls without an answer")
    return 1 if failures else 0


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Compare the providers whose key is set. Return 1 if a call got no answer at all."""
    providers = _providers(environment)
    if not providers:
        print(
            "No key is set, so nothing was called. Set ANTHROPIC_API_KEY, OPENAI_API_KEY or XAI_API_KEY, and run it again."
        )
        return 0
    return asyncio.run(_run(providers))


if __name__ == "__main__":
    sys.exit(main())
