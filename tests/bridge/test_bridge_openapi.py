"""The OpenAPI document: it is valid, names every route, and what the bridge answers to made-up requests is what the document says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from functools import cache

import pytest
import schemathesis
from http_kit import http_side, run
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.bridge.settings import BridgeSettings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
TOKENS = {"/hooks": "hook", "/metrics": "metrics", "/admin": "root"}
STREAMS = "/sessions/{session_id}/stream"
"""It has no end, so its answers are tested elsewhere."""


PLENTY = BridgeSettings(sessions_per_minute=10**6, hooks_per_minute=10**6, batches_per_minute=10**6, files_per_minute=10**6, info_per_minute=10**6)  # fmt: skip


@cache
def document():
    async def fetch():
        async with http_side() as http:
            return (await http.get("/openapi.json", None)).json()

    return run(fetch())


@contextlib.contextmanager
def served():
    """Serve the HTTP side in a thread, for a client that blocks."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found = {}

    async def serve():
        found["stop"] = asyncio.Event()
        async with http_side(PLENTY) as http:
            await http.make("s-1", "hello", "world")
            found["url"] = http.served.url
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield found["url"]
    finally:
        loop.call_soon_threadsafe(found["stop"].set)
        thread.join(10)
        loop.close()


def test_the_document_names_every_route_and_its_schemas_are_valid():
    described = document()

    async def scenario():
        async with http_side() as http:
            documented = {(method.upper(), path) for path, ways in described["paths"].items() for method in ways}
            routes = {(next(iter(r.methods - {"HEAD"})), r.path.replace(":path", "")) for r in http.api.routes}
            assert {(m, p) for m, p in routes if not p.startswith("/api/v1")} == documented
            assert {(m, p.removeprefix("/api/v1")) for m, p in routes if p.startswith("/api/v1")} == documented

    run(scenario())
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert described["openapi"] == "3.1.0"
    ids = [way["operationId"] for ways in described["paths"].values() for way in ways.values()]
    assert len(ids) == len(set(ids))
    assert "session_id" not in json.dumps(described["paths"]["/metrics"])


def try_all(examples: int, mode: GenerationMode, paths=()) -> int:
    """Send made-up requests to routes; return how many were sent."""
    schema = schemathesis.openapi.from_dict(document())
    with served() as url:
        operations = [result.ok() for result in schema.get_all_operations()]
        chosen = [
            each for each in operations if (not paths or each.path in paths) and each.path not in {STREAMS, "/ws"}
        ]
        return sum(try_one(each, url, examples, mode) for each in chosen)


def try_one(operation, url: str, examples: int, mode: GenerationMode) -> int:
    takes_nothing = not (operation.body or operation.query or operation.path_parameters or operation.headers)
    if mode is GenerationMode.NEGATIVE and takes_nothing:
        return 0
    token = next((TOKENS[start] for start in TOKENS if operation.path.startswith(start)), "ada")
    sent = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case):
        sent.append(case)
        response = case.call(base_url=url, headers={"authorization": f"Bearer {token}"})
        case.validate_response(response, checks=CHECKS)

    one()
    return len(sent)


def test_the_answers_to_made_up_requests_are_those_of_the_document():
    paths = {"/sessions", "/sessions/{session_id}/events"}
    assert try_all(3, GenerationMode.POSITIVE, paths) >= 9


@pytest.mark.soak
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_the_answers_to_many_made_up_requests_are_those_of_the_document(mode):
    assert try_all(60, mode) > 500
