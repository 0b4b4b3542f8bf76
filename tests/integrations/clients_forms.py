"""Every kind of call of the real SDKs, sync and async, against the fault provider in memory and in virtual time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import anthropic
import httpx2
import openai

import holdfast.anthropic
import holdfast.openai
from holdfast import Policy, Runtime, StreamCutError
from holdfast.events import AttemptStarted
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import Capture, FaultProvider, Midpoint, VirtualClock, run

CLAUDE, GPT, GROK = "claude-haiku-4-5", "gpt-5-mini", "grok-4"
QUESTION = "What is a holdfast?"
ANSWER = f"You said: {QUESTION}"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
HOSTS = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1", "xai": "https://api.x.ai/v1"}

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_WEATHER = {"name": "weather", "description": "the weather"}
TOOLS: dict[str, Any] = {
    "messages": [{**_WEATHER, "input_schema": _SCHEMA}],
    "chat": [{"type": "function", "function": {**_WEATHER, "parameters": _SCHEMA}}],
    "responses": [{"type": "function", **_WEATHER, "parameters": _SCHEMA}],
}


class Form(NamedTuple):
    """One way to ask: the protocol, at whose host, whole or as a stream."""

    protocol: str
    host: str
    stream: bool
    raw: bool = False
    """Ask for the response itself, whose body the SDK reads later."""

    @property
    def model(self) -> str:
        return {"anthropic": CLAUDE, "openai": GPT, "xai": GROK}[self.host]

    @property
    def sdk(self) -> Any:
        return anthropic if self.host == "anthropic" else openai

    def begin(self, client: Any) -> Any:
        """Make the call; what comes back is the answer, a stream, or a coroutine for either."""
        tools = {"tools": TOOLS[self.protocol]} if self.stream else {}
        options: dict[str, Any] = {"model": self.model, "stream": self.stream, **tools}
        door = {"messages": "messages", "chat": "chat.completions", "responses": "responses"}[self.protocol]
        resource = attrgetter(f"{door}.with_raw_response" if self.raw else door)(client)
        if self.protocol == "messages":
            return resource.create(max_tokens=99, messages=MESSAGES, **options)
        if self.protocol == "chat":
            return resource.create(messages=MESSAGES, **options)
        return resource.create(input=QUESTION, **options)


FORMS = {
    "messages": Form("messages", "anthropic", stream=False),
    "chat": Form("chat", "openai", stream=False),
    "chat of xai": Form("chat", "xai", stream=False),
    "responses": Form("responses", "openai", stream=False),
    "messages, streamed": Form("messages", "anthropic", stream=True),
    "chat, streamed": Form("chat", "openai", stream=True),
    "chat of xai, streamed": Form("chat", "xai", stream=True),
    "responses, streamed": Form("responses", "openai", stream=True),
}
WHOLE = {name: form for name, form in FORMS.items() if not form.stream}
RAW = {name: form._replace(raw=True) for name, form in WHOLE.items()}
STREAMED = {name: form for name, form in FORMS.items() if form.stream}


def text_of(answer: Any) -> str:
    """The text of a whole answer."""
    if hasattr(answer, "output_text"):
        return answer.output_text
    return answer.choices[0].message.content if hasattr(answer, "choices") else answer.content[0].text


def text_in(event: Any) -> str:
    """The text in one event of a stream."""
    if getattr(event, "object", None) == "chat.completion.chunk":
        return (event.choices[0].delta.content or "") if event.choices else ""
    delta = getattr(event, "delta", None)
    if event.type == "response.output_text.delta":
        return delta
    return getattr(delta, "text", None) or ""


def arguments_in(event: Any) -> str:
    """The part of a tool call's arguments in one event of a stream."""
    if getattr(event, "object", None) == "chat.completion.chunk":
        calls = event.choices[0].delta.tool_calls or () if event.choices else ()
        return "".join(call.function.arguments or "" for call in calls)
    if event.type == "response.function_call_arguments.delta":
        return event.delta
    return getattr(getattr(event, "delta", None), "partial_json", None) or ""


def client_for(form: Form, transport: Any, *, is_async: bool) -> Any:
    """A real client of the form's SDK on a transport, without retries."""
    sync, async_ = (
        (anthropic.Anthropic, anthropic.AsyncAnthropic)
        if form.host == "anthropic"
        else (openai.OpenAI, openai.AsyncOpenAI)
    )
    http: Any = (httpx2.AsyncClient if is_async else httpx2.Client)(transport=transport)
    kind: Any = async_ if is_async else sync
    return kind(base_url=HOSTS[form.host], api_key="test", http_client=http, max_retries=0)


def recovering(form: Form, client: Any, **options: Any) -> Any:
    """The client, recovering."""
    integration: Any = holdfast.anthropic if form.host == "anthropic" else holdfast.openai
    return integration.recovering(client, **options)


class Played(NamedTuple):
    """How one call went."""

    error: Exception | None
    text: str
    arguments: str
    events: list[Any]
    attempts: int
    provider: FaultProvider
    runtime: Runtime
    heard: Capture

    @property
    def seconds(self) -> float:
        return self.runtime.clock.monotonic()


ANNOUNCED = {name: form for name, form in STREAMED.items() if form.protocol == "responses"}
"""Streams whose first event announces an id that no other answer has: they recover only until then."""
REPLACEABLE = {name: form for name, form in STREAMED.items() if name not in ANNOUNCED}


def play(
    script: str,
    form: Form,
    *,
    is_async: bool,
    policy: Policy | None = None,
    after_first: Any = "raise",
    **options: Any,
) -> Played:
    """Make one call through a recovering client, read it to its end, and say how it went."""
    runtime, heard = Runtime(clock=VirtualClock(), rng=Midpoint()), Capture()
    runtime.configure(Policy(profile="stud", circuit=PROVIDER), {})  # so that a test can count attempts and seconds
    runtime.on(heard)
    provider = FaultProvider(script, clock=runtime.clock, **options)
    client = client_for(form, provider.transport(), is_async=is_async)
    client = recovering(form, client, runtime=runtime, policy=policy, after_first=after_first)
    events: list[Any] = []
    error: Exception | None = None
    whole = None
    try:
        whole = _ask(form, client, events, runtime.clock, is_async=is_async)
    except Exception as raised:
        error = raised
    text = text_of(whole) if whole is not None else "".join(map(text_in, events))
    arguments = "".join(map(arguments_in, events))
    return Played(error, text, arguments, events, len(heard.of(AttemptStarted)), provider, runtime, heard)


def bare_error(step: str, form: Form, *, is_async: bool) -> Exception | None:
    """What the SDK raises without us; None where it does not notice."""
    clock = VirtualClock()
    client = client_for(form, FaultProvider(step, clock=clock).transport(), is_async=is_async)
    try:
        _ask(form, client, [], clock, is_async=is_async)
    except Exception as raised:
        return raised
    return None


def _ask(form: Form, client: Any, events: list[Any], clock: VirtualClock, *, is_async: bool) -> Any:
    return run(collect_async(form, client, events), clock=clock) if is_async else collect(form, client, events)


def collect(form: Form, client: Any, events: list[Any]) -> Any:
    answer = form.begin(client)
    if not form.stream:
        return answer.parse() if form.raw else answer
    with answer:
        for event in answer:
            events.append(event)  # noqa: PERF402 - what came before a failure counts
    return None


async def _parsed(response: Any) -> Any:
    parsed = response.parse()
    return await parsed if inspect.isawaitable(parsed) else parsed


async def collect_async(form: Form, client: Any, events: list[Any]) -> Any:
    answer = await form.begin(client)
    if not form.stream:
        return await _parsed(answer) if form.raw else answer
    async with answer:
        async for event in answer:
            events.append(event)  # noqa: PERF401 - the events before a failure matter
    return None


def is_whole(form: Form, event: Any) -> bool:
    """Whether an event says that a tool call is complete."""
    ends: dict[str, Callable[[Any], bool]] = {
        "messages": lambda it: it.type in ("content_block_stop", "message_stop"),
        "chat": lambda it: any(choice.finish_reason is not None for choice in it.choices),
        "responses": lambda it: it.type in ("response.function_call_arguments.done", "response.completed"),
    }
    with suppress(AttributeError):
        return ends[form.protocol](event)
    return False


def is_cut(error: Exception | None) -> bool:
    return isinstance(error, StreamCutError)
