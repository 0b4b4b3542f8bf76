"""A recovering client keeps what the given client has: the state of a subclass, its resources, and a key that is rotated."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from clients_kit import REQUEST, message
from openai import OpenAI

import holdfast.anthropic
import holdfast.openai


class Tenant(Anthropic):
    def __init__(self, tenant: str, **options: Any) -> None:
        super().__init__(**options)
        self.tenant = tenant

    @property
    def default_headers(self) -> Any:
        return {**super().default_headers, "x-tenant": self.tenant}


class AsyncTenant(AsyncAnthropic):
    def __init__(self, tenant: str, **options: Any) -> None:
        super().__init__(**options)
        self.tenant = tenant

    @property
    def default_headers(self) -> Any:
        return {**super().default_headers, "x-tenant": self.tenant}


class Seen:
    """Answers, and keeps the headers of the requests."""

    def __init__(self) -> None:
        self.headers: list[Any] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.headers.append(request.headers)
        return message()()

    async def asynchronously(self, request: httpx2.Request) -> httpx2.Response:
        return self(request)


def ask(kind: Any, seen: Seen, *, is_async: bool) -> tuple[Any, Any]:
    http: Any = (
        httpx2.AsyncClient(transport=httpx2.MockTransport(seen.asynchronously))
        if is_async
        else httpx2.Client(transport=httpx2.MockTransport(seen))
    )
    given = kind("acme", api_key="old", http_client=http)
    return given, holdfast.anthropic.recovering(given)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_AK7_the_state_of_a_subclass_is_kept(is_async):
    seen = Seen()
    given, claude = ask(AsyncTenant if is_async else Tenant, seen, is_async=is_async)

    async def send() -> None:
        await claude.messages.create(**REQUEST)

    asyncio.run(send()) if is_async else claude.messages.create(**REQUEST)
    assert [headers["x-tenant"] for headers in seen.headers] == ["acme"]
    assert type(claude) is type(given)


def test_AK7_a_key_that_is_rotated_on_the_given_client_is_used():
    seen = Seen()
    given, claude = ask(Tenant, seen, is_async=False)
    given.api_key = "rotated"
    claude.messages.create(**REQUEST)
    claude.api_key = "own"
    claude.messages.create(**REQUEST)
    keys = [headers.get("x-api-key") or headers["authorization"].removeprefix("Bearer ") for headers in seen.headers]
    assert keys == ["rotated", "own"]


def test_AK7_nothing_changes_on_the_given_client_and_its_resources_stay_its_own():
    given = OpenAI(api_key="k")
    chat, retries = given.chat, given.max_retries
    gpt = holdfast.openai.recovering(given)
    assert given.chat is chat
    assert gpt.chat is not chat
    assert (given.max_retries, gpt.max_retries) == (retries, 0)
    assert "request" not in vars(given)
