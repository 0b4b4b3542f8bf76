"""`RequestIds` in front of a real ASGI application: what happens for a request carries its id."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient

from holdfast import Runtime, recover
from holdfast.asgi import RequestIds
from holdfast.testing import Capture


def served():
    """Return a client of an application that recovers a call for each request, and what that call reported."""
    runtime, events = Runtime(), Capture()
    runtime.on(events)

    @recover("claude", runtime=runtime)
    async def call() -> str:
        return "hello"

    async def answer(request):
        return PlainTextResponse(await call())

    async def stream(request):
        async def parts():
            yield await call()
            await asyncio.sleep(0)
            yield await call()

        return StreamingResponse(parts())

    async def talk(socket):
        await socket.accept()
        await socket.send_text(await call())
        await socket.close()

    routes = [Route("/", answer), Route("/stream", stream), WebSocketRoute("/talk", talk)]
    return TestClient(RequestIds(Starlette(routes=routes))), events


def test_the_id_of_the_header_is_in_every_event_and_in_the_answer():
    client, events = served()
    assert client.get("/", headers={"X-Request-ID": "req-1"}).headers["x-request-id"] == "req-1"
    assert {event.request for event in events} == {"req-1"}


def test_a_streamed_answer_belongs_to_its_request_to_the_end():
    client, events = served()
    assert client.get("/stream", headers={"X-Request-ID": "req-1"}).text == "hellohello"
    assert {event.request for event in events} == {"req-1"}
    assert len({event.run for event in events}) == 2


def test_a_socket_has_one_id():
    client, events = served()
    with client.websocket_connect("/talk", headers={"X-Request-ID": "req-1"}) as socket:
        assert socket.receive_text() == "hello"
    assert {event.request for event in events} == {"req-1"}


def test_without_the_header_the_trace_is_the_id():
    client, events = served()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    client.get("/", headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    assert {event.request for event in events} == {trace}


@pytest.mark.parametrize("sent", [{}, {"X-Request-ID": "x" * 201}, {"X-Request-ID": "\x1b[2J"}, {"traceparent": "00"}])
def test_without_an_id_that_can_be_shown_each_request_gets_a_new_one(sent):
    client, events = served()
    named = [client.get("/", headers=sent).headers["x-request-id"] for _ in range(2)]
    assert len(set(named)) == 2
    assert [event.request for event in events] == [named[0], named[0], named[1], named[1]]
