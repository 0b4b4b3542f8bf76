"""Cases: what a commit stores, in which order, and which commits fail as a whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.stores import Commit, NewCheckpoint, NewSession, SessionState
from holdfast.testing.stores.conformance import Kit, appending, audit, case, claim, create, everything, raises_fault

if TYPE_CHECKING:
    from holdfast.stores import Store

__all__: list[str] = []

_WRITERS = 6
_EACH = 10


@case
async def a_new_session_has_its_initial_values(kit: Kit) -> None:
    async with kit.store() as store:
        receipt = await create(store, state=None)
        record = await store.session("s1")
        assert (receipt.first, receipt.top) == (0, 0)
        assert (record.id, record.state, record.oldest, record.top) == ("s1", SessionState.CREATED, 1, 0)
        assert (record.created_at, record.last_at) == (kit.clock.wall(), kit.clock.wall())
        assert bytes(record.manifest) == b'{"model":"m"}'
        assert (record.fence, record.owner, record.checkpoint) == (0, None, None)
        assert record.epoch == receipt.epoch != ""


@case
async def sessions_have_epochs_of_their_own(kit: Kit) -> None:
    async with kit.store() as store:
        assert len({(await create(store, name)).epoch for name in ("s1", "s2", "s3")}) == 3


@case
async def offsets_begin_at_one_and_have_no_holes(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        first = await store.commit(appending("a", "b"))
        second = await store.commit(appending("c"))
        none = await store.commit(Commit(session="s1", state=SessionState.PAUSED))
        assert [(r.first, r.top) for r in (first, second, none)] == [(1, 2), (3, 3), (0, 3)]
        assert [(e.offset, e.id, e.type) for e in await everything(store)] == [
            (1, "a", "message"),
            (2, "b", "message"),
            (3, "c", "message"),
        ]


@case
async def concurrent_writers_get_contiguous_offsets_in_commit_order(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)

        async def write(writer: int) -> list[tuple[int, str]]:
            own: list[tuple[int, str]] = []
            for n in range(_EACH):
                # Write one or two entries per commit. A wrong store could put entries of other writers between the two.
                ids = [f"w{writer}-{n}-{k}" for k in range(1 + n % 2)]
                receipt = await store.commit(appending(*ids))
                assert receipt.top - receipt.first + 1 == len(ids)
                own += [(receipt.first + k, id_) for k, id_ in enumerate(ids)]
            return own

        written = [pair for own in await asyncio.gather(*map(write, range(_WRITERS))) for pair in own]
        stored = await everything(store)
        assert [entry.offset for entry in stored] == list(range(1, len(written) + 1))
        assert sorted(written) == [(entry.offset, entry.id) for entry in stored]
        assert (await store.session("s1")).top == len(written)


@case
async def a_reader_never_sees_half_a_commit(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        writing = True

        async def write() -> None:
            nonlocal writing
            for n in range(_EACH):
                await store.commit(appending(f"{n}-a", f"{n}-b", f"{n}-c", audit=(audit(n),)))
            writing = False

        async def watch() -> None:
            # Every commit has three entries, so any number that is not a multiple of three is half a commit.
            while writing:
                assert len(await store.read("s1")) % 3 == 0
                await asyncio.sleep(0)

        await asyncio.gather(write(), watch(), watch())


@case
async def time_never_goes_back_in_a_log(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        first = await store.commit(appending("a"))
        # NTP may set the clock back. Readers sort by time, and entries must keep their order.
        kit.clock.jump(-3_600)
        second = await store.commit(appending("b"))
        kit.clock.jump(7_200)
        third = await store.commit(appending("c"))
        assert second.at == first.at < third.at
        assert [entry.at for entry in await everything(store)] == [first.at, second.at, third.at]
        assert (await store.session("s1")).last_at == third.at


@case
async def all_parts_of_a_commit_are_stored(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        kit.clock.advance(5)
        snapshot = NewCheckpoint(message_count=2, last_message_id="b", snapshot=b'{"context":[1]}')
        receipt = await store.commit(
            appending(
                "a",
                "b",
                state=SessionState.PAUSED,
                manifest=b'{"model":"n"}',
                checkpoint=snapshot,
                claim=claim(),
                audit=(audit(1), audit(2)),
            )
        )
        record, kept = await store.session("s1"), await store.checkpoint("s1")
        assert (record.state, record.top, record.checkpoint, bytes(record.manifest)) == (
            SessionState.PAUSED,
            2,
            2,
            b'{"model":"n"}',
        )
        assert kept is not None
        assert (kept.offset, kept.at, kept.message_count, kept.last_message_id, bytes(kept.snapshot)) == (
            2,
            receipt.at,
            2,
            "b",
            b'{"context":[1]}',
        )
        assert [r.seq for r in await store.audit("session:s1")] == [1, 2]
        assert bytes(receipt.result) == b'{"ok":1}'
        assert not receipt.duplicate


@case
async def nothing_of_a_rejected_commit_is_stored(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.acquire("s1", "me", 60)
        await store.commit(appending("a", claim=claim()))
        before = await _all_of(store)
        snapshot = NewCheckpoint(message_count=9, last_message_id=None, snapshot=b"{}")
        # Use a commit with all parts, because a rejection must undo all of them.
        full = appending("x", "y", state=SessionState.PAUSED, manifest=b"{}", checkpoint=snapshot, audit=(audit(),))
        rejections: tuple[tuple[str, dict[str, Any]], ...] = (
            ("PROTO_DUPLICATE_ID", {"claim": claim(body=b"another")}),
            ("SESS_LEASE_LOST", {"fence": 7, "claim": claim("m2")}),
            ("SESS_ILLEGAL_TRANSITION", {"expect": (SessionState.CREATED,), "claim": claim("m2")}),
            ("SESS_ILLEGAL_TRANSITION", {"create": NewSession(manifest=b"{}"), "claim": claim("m2")}),
            ("SESS_NOT_FOUND", {"session": "s2", "claim": claim("m2")}),
        )
        for code, more in rejections:
            with raises_fault(code):
                await store.commit(msgspec.structs.replace(full, **more))
            assert await _all_of(store) == before
        assert (await store.commit(appending("b", claim=claim("m2")))).first == 2


async def _all_of(store: Store) -> bytes:
    return msgspec.json.encode(
        [await store.sessions(), await everything(store), await store.checkpoint("s1"), await store.chains()]
    )


@case
async def a_missing_session_accepts_nothing(kit: Kit) -> None:
    async with kit.store() as store:
        with raises_fault("SESS_NOT_FOUND") as faults:
            await store.commit(appending("a", session="s9"))
        assert faults[0].context["session_id"] == "s9"
        with raises_fault("SESS_NOT_FOUND"):
            await store.session("s9")
        with raises_fault("SESS_NOT_FOUND"):
            await store.read("s9")
        with raises_fault("SESS_NOT_FOUND"):
            await store.checkpoint("s9")


@case
async def a_closed_session_accepts_nothing(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("bye", state=SessionState.CLOSED))
        for commit in (
            appending("more"),
            Commit(session="s1", state=SessionState.ACTIVE),
            Commit(session="s1", audit=(audit(),)),
            Commit(session="s1", expect=(SessionState.CLOSED,), state=SessionState.ACTIVE),
        ):
            with raises_fault("SESS_CLOSED"):
                await store.commit(commit)
        assert [entry.id for entry in await everything(store)] == ["bye"]


@case
async def a_session_in_error_accepts_nothing(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(appending("failed", state=SessionState.ERROR))
        for commit in (appending("more"), Commit(session="s1", state=SessionState.ACTIVE)):
            with raises_fault("SESS_CLOSED"):
                await store.commit(commit)
        assert [entry.id for entry in await everything(store)] == ["failed"]


@case
async def a_closed_session_takes_another_manifest_and_nothing_else(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        await store.commit(Commit(session="s1", state=SessionState.CLOSED))
        # The data key of an encrypted session is wrapped by another key, also after the session was closed.
        wrapped = Commit(session="s1", expect=(SessionState.CLOSED,), manifest=b'{"key":"another"}')
        await store.commit(wrapped)
        assert bytes((await store.session("s1")).manifest) == b'{"key":"another"}'
        for more in ({"state": SessionState.ACTIVE}, {"entries": appending("e1").entries}):
            with raises_fault("SESS_CLOSED"):
                await store.commit(msgspec.structs.replace(wrapped, **more))


@case
async def a_commit_that_is_submitted_is_made_without_a_waiter(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        submit = getattr(store, "submit", None)
        if submit is None:
            # A store need not have it.
            return
        first, second = submit(appending("e1")), submit(appending("e2"))
        assert isinstance(first, asyncio.Future)
        second.cancel()
        assert (await first).top == 1
        with raises_fault("SESS_NOT_FOUND"):
            await submit(appending("e1", session="missing"))
        receipt = await submit(appending("e3"))
        ids = [kept.id for kept in await store.read("s1")]
        # Who cancels the future of a commit does not know whether it is made.
        assert ids in (["e1", "e3"], ["e1", "e2", "e3"])
        assert receipt.top == len(ids)


@case
async def a_session_is_created_once(kit: Kit) -> None:
    async with kit.store() as store:
        made = await asyncio.gather(*(create(store) for _ in range(5)), return_exceptions=True)
        assert sum(not isinstance(one, BaseException) for one in made) == 1
        with raises_fault("SESS_ILLEGAL_TRANSITION"):
            await create(store)


@case
async def an_unexpected_state_is_rejected(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        with raises_fault("SESS_ILLEGAL_TRANSITION") as faults:
            await store.commit(Commit(session="s1", expect=(SessionState.PAUSED,), state=SessionState.ACTIVE))
        assert (faults[0].context["from_state"], faults[0].context["to_state"]) == ("active", "active")
        await store.commit(
            Commit(session="s1", expect=(SessionState.PAUSED, SessionState.ACTIVE), state=SessionState.PAUSED)
        )
        assert (await store.session("s1")).state == SessionState.PAUSED


@case
async def a_writer_that_has_seen_more_than_the_log_holds_is_rejected(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        lease = await store.acquire("s1", "a", 10)
        await store.commit(appending("e1", "e2", after=0, fence=lease.fence))
        await store.commit(appending("e3", after=2, fence=lease.fence))
        # Others may have written since.
        await store.commit(appending("e4", after=1, fence=lease.fence))
        for behind in (appending("e5", after=5), appending("e5", after=4, fence=lease.fence + 1)):
            with raises_fault("SESS_MANIFEST_DRIFT") as faults:
                await store.commit(behind)
            assert (faults[0].context["seen"], faults[0].context["top"]) == (behind.after, 4)
        assert [entry.id for entry in await everything(store)] == ["e1", "e2", "e3", "e4"]


@case
async def one_of_several_concurrent_state_changes_wins(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        pause = Commit(session="s1", expect=(SessionState.ACTIVE,), state=SessionState.PAUSED)
        done = await asyncio.gather(*(store.commit(pause) for _ in range(5)), return_exceptions=True)
        assert sum(not isinstance(one, BaseException) for one in done) == 1


@case
async def sessions_do_not_mix(kit: Kit) -> None:
    async with kit.store() as store:
        names = [f"s{n}" for n in range(4)]
        await asyncio.gather(*(create(store, name) for name in names))
        await asyncio.gather(
            *(store.commit(appending(f"{name}-{n}", session=name)) for n in range(5) for name in names)
        )
        for name in names:
            log = await everything(store, name)
            assert [entry.offset for entry in log] == [1, 2, 3, 4, 5]
            assert {entry.id.partition("-")[0] for entry in log} == {name}


@case
async def every_entry_has_a_hash_of_it_and_of_those_before(kit: Kit) -> None:
    async with kit.store() as store:
        for session in ("s1", "s2"):
            await create(store, session)
            await store.commit(appending("a", "b", session=session))
            await store.commit(appending("a" if session == "s1" else "x", session=session))
        one, other = await everything(store, "s1"), await everything(store, "s2")
        hashes = [entry.hash for entry in (*one, *other)]
        assert all(hashes)
        # The same entry elsewhere, or after others, has another hash.
        assert len(set(hashes)) == len(hashes)
        # A page that begins in the middle has the same hashes, also after the entries before it were dropped.
        assert (await store.read("s1", after=1))[0].hash == one[1].hash
        snapshot = NewCheckpoint(message_count=1, last_message_id=None, snapshot=b"{}")
        await store.commit(Commit(session="s1", checkpoint=snapshot))
        await store.compact("s1", 3)
        assert [entry.hash for entry in await everything(store)] == [one[2].hash]
        await store.commit(appending("c"))
        assert [entry.id for entry in await everything(store)] == ["a", "c"]
