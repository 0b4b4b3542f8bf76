"""Streams of the real google-genai in front of a server that breaks off."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google import genai

from holdfast import Budget, StreamCutError, recover
from holdfast.testing import no_waiting


def chunk(text, finish=None):
    candidate = {
        "content": {"role": "model", "parts": [{"text": text}]},
        **({"finishReason": finish} if finish else {}),
    }
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    body = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-x"}
    return f"data: {json.dumps(body)}\r\n\r\n".encode()


@pytest.fixture
def stage():
    """A server that answers as its script says, and a client of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            server.received += 1
            step = server.script.pop(0)
            self.send_response(503 if step == "503" else 200)
            self.send_header("content-type", "application/json" if step == "503" else "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            if step == "503":
                self.wfile.write(b'{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}')
                return
            self.wfile.write(chunk("You said:"))
            if step == "ok":
                self.wfile.write(chunk(" hello", "STOP"))

        def log_message(self, *_):
            """It prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.received, server.script = 0, []
    server.client = genai.Client(api_key="x", http_options={"base_url": f"http://127.0.0.1:{server.server_port}"})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with no_waiting():
        yield server
    server.shutdown()
    server.server_close()


def read(server, kind, *script):
    server.script[:] = script
    recovery, asked = recover(f"gemini-{kind}-{script}"), {"model": "gemini-x", "contents": "hello"}
    if kind == "sync":
        with recovery.stream(server.client.models.generate_content_stream)(**asked) as stream:
            return "".join(chunk.text for chunk in stream)

    async def reading():
        async with recovery.stream(server.client.aio.models.generate_content_stream)(**asked) as stream:
            return "".join([chunk.text async for chunk in stream])

    return asyncio.run(reading())


each_kind = pytest.mark.parametrize("kind", ["sync", "async"])


@each_kind
def test_a_failure_before_the_first_content_stays_unseen(stage, kind):
    assert read(stage, kind, "503", "ok") == "You said: hello"
    assert stage.received == 2


@each_kind
def test_FI11_a_truncated_stream_is_not_taken_as_whole(stage, kind):
    with pytest.raises(StreamCutError) as caught:
        read(stage, kind, "truncate")
    assert caught.value.fault.code == "PROVIDER_STREAM_CUT"
    assert caught.value.partial.complete == 1


@each_kind
def test_what_a_stream_used_is_charged(stage, kind):
    with Budget(tokens=100) as budget:
        read(stage, kind, "ok")
    assert budget.left().tokens == 95
