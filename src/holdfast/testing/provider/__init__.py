"""A provider that fails as a script says. It speaks the protocols of the large ones, so the real SDKs and programs can call it.

    with serve_in_thread("429;retry-after=7, cut;after=3, ok") as provider:
        client = anthropic.Anthropic(base_url=provider.url, api_key="test", max_retries=0)

server, transport    perform plans on sockets and in memory; `FaultProvider` is in `server`
core                 turns a request into a plan, which is a sequence of acts on the connection
script               which request gets which fault
limits               which request exceeds a limit
faults, replies      the plans with a fault, and the replies without a fault
routes, resources    the paths, and what is served there besides replies
dialect              what a protocol must supply; `anthropic`, `openai`, `gemini` and `bedrock` are the protocols
schema               values that fit a JSON schema
history              conversations that the real providers reject
http                 requests, acts, and HTTP as bytes
"""

from __future__ import annotations

from holdfast.testing.provider.core import Counters
from holdfast.testing.provider.http import Request
from holdfast.testing.provider.limits import Limit, Limits, read_limit
from holdfast.testing.provider.replies import ToolCall, Turn
from holdfast.testing.provider.script import Rule, Script, read_file, read_script
from holdfast.testing.provider.server import FaultProvider, serve_in_thread

__all__ = [
    "Counters",
    "FaultProvider",
    "Limit",
    "Limits",
    "Request",
    "Rule",
    "Script",
    "ToolCall",
    "Turn",
    "read_file",
    "read_limit",
    "read_script",
    "serve_in_thread",
]
