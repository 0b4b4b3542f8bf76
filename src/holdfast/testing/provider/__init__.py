"""A provider that misbehaves on script: Anthropic's, OpenAI's and xAI's protocols, against which the real SDKs run.

    with serve_in_thread("429;retry-after=7, cut;after=3, ok") as provider:
        client = anthropic.Anthropic(base_url=provider.url, api_key="test", max_retries=0)

`acts` are what may happen to a connection; `core` turns a request into a plan of acts by `script`, `faults`, `replies` and
`protocols`; `server` performs plans on sockets and `transport` in memory; `hosting` is what users hold in their hands.
"""

from __future__ import annotations

from holdfast.testing.provider.counters import Counters
from holdfast.testing.provider.hosting import FaultProvider, serve_in_thread
from holdfast.testing.provider.replies import Turn
from holdfast.testing.provider.requests import Request
from holdfast.testing.provider.script import Rule, Script, read_file, read_script

__all__ = [
    "Counters",
    "FaultProvider",
    "Request",
    "Rule",
    "Script",
    "Turn",
    "read_file",
    "read_script",
    "serve_in_thread",
]
