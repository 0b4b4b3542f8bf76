"""The calls that the real SDKs make against the fault provider."""

from __future__ import annotations

import anthropic
import openai

__all__ = ["CALLS", "CLAUDE", "GPT", "MESSAGES", "anthropic_client", "limit_for", "openai_client", "weather_for"]

CLAUDE, GPT, GROK = "claude-haiku-4-5", "gpt-5-mini", "grok-4"
LIMIT, PATIENCE = 0.2, 5.0
MESSAGES = [{"role": "user", "content": "What is a holdfast?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def weather_for(provider):
    """Return the weather tool in each provider's format."""
    if provider == "anthropic":
        return [{"name": "weather", "description": "the weather", "input_schema": SCHEMA}]
    function = {"name": "weather", "description": "the weather", "parameters": SCHEMA}
    return [{"type": "function", "function": function}] if provider == "chat" else [{"type": "function", **function}]


def limit_for(script):
    """Return a short timeout if the script is slow on purpose, otherwise one that a busy machine keeps."""
    return LIMIT if any(rule.steps.startswith(("hang", "slow", "silence")) for rule in script.rules) else PATIENCE


def anthropic_client(provider, kind=anthropic.Anthropic):
    return kind(base_url=provider.url, api_key="test", max_retries=0, timeout=limit_for(provider.script))


def openai_client(provider, kind=openai.OpenAI):
    return kind(base_url=provider.openai_url, api_key="test", max_retries=0, timeout=limit_for(provider.script))


def messages(provider):
    with anthropic_client(provider) as client:
        return client.messages.create(model=CLAUDE, max_tokens=99, messages=MESSAGES)


def messages_stream(provider):
    with (
        anthropic_client(provider) as client,
        client.messages.stream(
            model=CLAUDE, max_tokens=99, messages=MESSAGES, tools=weather_for("anthropic")
        ) as stream,
    ):
        return stream.get_final_message()


def chat(provider, model=GPT):
    with openai_client(provider) as client:
        return client.chat.completions.create(model=model, messages=MESSAGES)


def chat_of_xai(provider):
    return chat(provider, GROK)


def chat_stream(provider):
    with openai_client(provider) as client:
        return list(
            client.chat.completions.create(model=GPT, messages=MESSAGES, stream=True, tools=weather_for("chat"))
        )


def responses(provider):
    with openai_client(provider) as client:
        return client.responses.create(model=GPT, input="What is a holdfast?")


def responses_stream(provider):
    with (
        openai_client(provider) as client,
        client.responses.stream(model=GPT, input="What is a holdfast?", tools=weather_for("responses")) as stream,
    ):
        return stream.get_final_response()


CALLS = {
    call.__name__: call
    for call in (messages, messages_stream, chat, chat_of_xai, chat_stream, responses, responses_stream)
}
