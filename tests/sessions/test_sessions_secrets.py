"""FD4, B105: a configured secret is not stored; what only looks like one is stored exactly, and masked where it leaves."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sessions_kit import Crash, killed

from holdfast import OutcomeUnknownError, tool
from holdfast.faults import HoldfastError, InvalidError, Redactor
from holdfast.runtime import process_redactor
from holdfast.sessions import MaskedValueWarning, Session, codec, transfer
from holdfast.sessions.history import history_of
from holdfast.sessions.journal import memory_of
from holdfast.sessions.transfer import export_lines, import_lines
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import run

CANARY = "plain-looking-canary-42"
LOOKS = {
    "code": "password = getpass()\nurl = 'https://bob:abcdef123456@host/'",
    "next_page_token": "CAUQAA",
    "api_key": ["sk-ant-api03-AbCd_1234-EfGh"],
    "pin": {"password": 12345678},
    "mask": "[redacted]",
}
PARTS = ("abcdef123456", "sk-ant-api03", "12345678")
"""What no exit may show."""


def found() -> dict[str, Any]:
    return LOOKS


def use(given: dict[str, Any]) -> str:
    return given["code"]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SOME_API_KEY", CANARY)
    process_redactor.cache_clear()
    yield
    monkeypatch.undo()
    process_redactor.cache_clear()


def test_FD4_what_looks_like_a_secret_comes_back_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for start in (1, 2):
            try:
                async with SqliteStore(tmp_path / "s.db") as store, Session.open("s", store=store) as session:
                    if start == 2:
                        assert session.context == {"found": LOOKS}
                    async with session.turn(LOOKS):
                        back = await session.step(found)
                        assert back == LOOKS
                        # With a masked result this would be drift in the second run.
                        assert await session.step(use, back) == LOOKS["code"]
                        session.context["found"] = back
                        await session.checkpoint()
                        raise Crash
            except Crash:
                pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


async def result(session: Session) -> None:
    await session.keyed("leak").step(lambda: f"the key is {CANARY}")


async def message(session: Session) -> None:
    await session.message({"text": CANARY})


async def turn(session: Session) -> None:
    async with session.turn(CANARY):
        pass


async def context(session: Session) -> None:
    session.context["a"] = [CANARY]
    try:
        await session.checkpoint()
    finally:
        session.context.clear()


async def question(session: Session) -> None:
    await session.ask(f"is {CANARY} right?", expires=1)


@pytest.mark.parametrize("work", [result, message, turn, context, question])
def test_B105_a_configured_secret_is_rejected_and_is_in_no_file(
    tmp_path: Path, configured: None, work: Callable[[Session], Any]
) -> None:
    async def main() -> None:
        async with SqliteStore(tmp_path / "s.db") as store:
            async with Session.open("s", store=store) as session:
                with pytest.raises(InvalidError, match="without a configured secret") as raised:
                    await work(session)
                assert CANARY not in str(raised.value)
                # Nothing else is lost, and the session goes on.
                assert await session.step(found) == LOOKS
            lines = [line async for line in export_lines(store, "s", exact=True)]
        assert CANARY.encode() not in b"".join(lines)

    asyncio.run(main())
    for file in tmp_path.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file.name


def test_B105_an_unsafe_step_that_returned_a_configured_secret_is_an_open_doubt(configured: None) -> None:
    ran = []

    @tool(effect="unsafe")
    def rotate() -> str:
        ran.append(1)
        return f"new key: {CANARY}"

    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(InvalidError, match="without a configured secret") as raised:
            async with Session.open("s", store=store) as session:
                await session.step(rotate)
        assert any("is not repeated" in note for note in raised.value.__notes__)
        with pytest.raises(OutcomeUnknownError):
            async with Session.open("s", store=store) as session:
                await session.step(rotate)

    run(main())
    assert ran == [1]


def test_B105_a_failure_whose_text_holds_a_secret_of_the_store_is_stored_without_it() -> None:
    @tool(effect="unsafe")
    def charge() -> None:
        raise HoldfastError.because(f"refused for {CANARY}")

    async def main() -> None:
        store = MemoryStore(redactor=Redactor.knowing([CANARY]))
        with pytest.raises(HoldfastError, match="refused for"):
            async with Session.open("s", store=store) as session:
                await session.step(charge)
        (ended,) = (await memory_of(store, "s")).steps_of(0).values()
        assert msgspec.json.decode(ended.result)["code"] == "SYS_INTERNAL_ERROR"  # type: ignore[union-attr]

    run(main())


def test_B105_an_argument_that_is_a_secret_of_the_store_is_used_and_not_stored() -> None:
    @tool(effect="unsafe")
    def log_in(password: str) -> int:
        return len(password)

    async def main() -> None:
        store = MemoryStore(redactor=Redactor.knowing([CANARY]))
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                assert await session.step(log_in, CANARY) == len(CANARY)
        assert CANARY.encode() not in b"".join([line async for line in export_lines(store, "s", exact=True)])

    run(main())


def test_B105_an_export_is_masked_unless_it_is_exact() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            session.context["found"] = LOOKS
            await session.message(LOOKS)
            await session.step(found)
            await session.checkpoint()
            raise Crash

        await killed(store, work)
        masked = [line async for line in export_lines(store, "s")]
        persisted = transfer.dump_persisted([await transfer.persisted(store, "s")]).decode()
        for part in PARTS:
            assert part not in b"".join(masked).decode() + persisted
        assert b'"masked":true' in b"".join(masked)
        exact = [line async for line in export_lines(store, "s", exact=True)]
        assert b'"masked"' not in b"".join(exact)
        whole = (await transfer.persisted(store, "s", exact=True)).checkpoint
        assert whole is not None
        assert "abcdef123456" in str(whole.context_snapshot)

        other = MemoryStore()
        await import_lines(other, exact)
        async with Session.open("s", store=other) as session:
            assert session.context == {"found": LOOKS}
            assert await session.step(found) == LOOKS

    run(main())


def test_a_result_that_version_1_masked_is_returned_with_a_warning() -> None:
    with pytest.warns(
        MaskedValueWarning, match=r"found#1: a part of the stored value looked like a secret and was masked"
    ):
        assert codec.decode(b'{"url":"https://[redacted]@host"}', dict[str, str], "found#1") == {
            "url": "https://[redacted]@host"
        }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value, declared in (({"a": "[redacted]"}, Any), ("[redacted]", str), (["[redacted]"], list[str])):
            assert codec.decode(codec.encode_result(value, declared, "s"), declared, "s") == value


def address() -> str:
    return "https://bob:abcdef123456@host/"


def test_a_result_that_was_masked_is_marked_when_it_is_shown_and_returned() -> None:
    async def main() -> None:
        store, other = MemoryStore(), MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(address)
        await import_lines(other, [line async for line in export_lines(store, "s")])
        (exact,), (masked,) = (await history_of(store, "s")).outside, (await history_of(other, "s")).outside
        assert exact.result == '"https://[redacted]@host/"'
        assert masked.result == '"https://[redacted]@host/" (masked when it was stored)'
        async with Session.open("s", store=other) as session:
            with pytest.warns(MaskedValueWarning, match="address: a part of the stored value"):
                assert await session.step(address) == "https://[redacted]@host/"

    run(main())
