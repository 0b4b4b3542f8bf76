"""What the tests of transcripts share: short names for messages, and the real SDKs over the fault provider."""

from __future__ import annotations

import anthropic
import httpx2
import openai

from holdfast.testing.provider import FaultProvider

ASK = {"role": "user", "content": "Pay the bill"}
GO_ON = {"role": "user", "content": "Go on"}


def use(*ids, name="pay", text="I pay"):
    """Anthropic: an answer with calls."""
    calls = [{"type": "tool_use", "id": id_, "name": name, "input": {"usd": 5}} for id_ in ids]
    return {"role": "assistant", "content": [*([{"type": "text", "text": text}] if text else []), *calls]}


def result(id_, text="paid"):
    """Anthropic: the block of a result."""
    return {"type": "tool_result", "tool_use_id": id_, "content": text}


def user(*blocks):
    """Anthropic: a user's message of blocks; texts become blocks."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks],
    }


def chat_call(*ids, text=None):
    """Chat: an answer with calls."""
    calls = [{"id": id_, "type": "function", "function": {"name": "pay", "arguments": '{"usd":5}'}} for id_ in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def chat_result(id_, text="paid"):
    """Chat: the message of a result."""
    return {"role": "tool", "tool_call_id": id_, "content": text}


def call_item(call_id, item_id=None):
    """Responses: a call."""
    item = {"type": "function_call", "call_id": call_id, "name": "pay", "arguments": '{"usd":5}'}
    return {**item, "id": item_id} if item_id else item


def output(call_id, text="paid"):
    """Responses: the output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def reasoning(id_):
    """Responses: a reasoning item."""
    return {"type": "reasoning", "id": id_, "summary": []}


class Sender:
    """Sends histories with the real SDKs to the fault provider, without a socket."""

    def __init__(self):
        self.provider = FaultProvider()
        http = httpx2.Client(transport=self.provider.transport())
        self.anthropic = anthropic.Anthropic(api_key="k", base_url="http://provider", max_retries=0, http_client=http)
        self.openai = openai.OpenAI(api_key="k", base_url="http://provider/v1", max_retries=0, http_client=http)

    def send(self, form, history):
        if form == "anthropic":
            self.anthropic.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=history)
        elif form == "chat":
            self.openai.chat.completions.create(model="gpt-5", messages=history)
        else:
            self.openai.responses.create(model="gpt-5", input=history)

    def rejection(self, form, history):
        """Return the error, or None if the history is accepted."""
        try:
            self.send(form, history)
        except (anthropic.BadRequestError, openai.BadRequestError) as error:
            return error
        return None
