"""Cases: what may not pass a store's border, and what passes it unchanged."""

from __future__ import annotations

import msgspec

from holdfast.stores import Claim, Commit, NewAudit, NewCheckpoint, NewEntry, NewSession
from holdfast.testing.stores.kit import CANARY, Kit, appending, audit, case, create, everything, refused

__all__: list[str] = []

_NO_NAMES = ("", "../s1", "a b", "-a", "x" * 129, "ü", "a\n", "a/b", "a'b", "a\x00b")
_NO_TEXTS = ("", "a\x00b", "\ud800", "x" * 1_025)
_MEGABYTE = 1_000_000


@case
async def what_is_no_name_is_refused(kit: Kit) -> None:
    async with kit.store() as store:
        for name in _NO_NAMES:
            with refused("CONFIG_OPTION_INVALID"):
                await store.commit(Commit(session=name, create=NewSession(manifest=b"{}")))
            for call in (store.session(name), store.read(name), store.checkpoint(name), store.acquire(name, "a", 1)):
                with refused("CONFIG_OPTION_INVALID"):
                    await call
        for chain in _NO_NAMES[1:]:
            with refused("CONFIG_OPTION_INVALID"):
                await store.commit(Commit(chain=chain, audit=(audit(),)))
        with refused("CONFIG_OPTION_INVALID"):
            await store.commit(Commit(audit=(audit(),)))
        assert await store.sessions() == []
        assert await store.chains() == []


@case
async def a_name_may_be_as_long_as_is_said(kit: Kit) -> None:
    async with kit.store() as store:
        name = "aA0_.:@-" * 16
        await create(store, name)
        assert (await store.session(name)).id == name


@case
async def text_that_cannot_be_stored_everywhere_is_refused(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        for text in _NO_TEXTS:
            for commit in (
                Commit(session="s1", entries=(NewEntry(type="t", body=b"1", id=text),)),
                Commit(session="s1", entries=(NewEntry(type=text, body=b"1", id="a"),)),
                Commit(session="s1", claim=Claim(client=text, id="m", body_hash=b"h")),
                Commit(session="s1", claim=Claim(client="c", id=text, body_hash=b"h")),
            ):
                with refused("CONFIG_OPTION_INVALID"):
                    await store.commit(commit)
        with refused("CONFIG_OPTION_INVALID"):
            await store.commit(Commit(session="s1", entries=(NewEntry(type="t", body=b'"\xff"', id="a"),)))
        assert (await store.session("s1")).top == 0


@case
async def secrets_are_masked_wherever_they_stand(kit: Kit) -> None:
    body = msgspec.json.encode({"text": f"the key is {CANARY}.", CANARY: [CANARY]})
    async with kit.store() as store:
        await store.commit(Commit(session="s1", create=NewSession(manifest=body)))
        whole = Commit(
            session="s1",
            manifest=body,
            entries=(NewEntry(type="t", body=body, id="a"),),
            checkpoint=NewCheckpoint(message_count=1, last_message_id="a", snapshot=body),
            claim=Claim(client="c", id="m", body_hash=b"h", result=body),
            audit=(NewAudit(kind="Turn", correlation="r", payload=body),),
        )
        told = await store.commit(whole)
        again = await store.commit(whole)
        (stored,), kept, (sealed,) = (
            await everything(store),
            await store.checkpoint("s1"),
            await store.audit("session:s1"),
        )
        assert kept is not None
        for found in (
            (await store.session("s1")).manifest,
            stored.body,
            kept.snapshot,
            sealed.payload,
            told.result,
            again.result,
        ):
            assert CANARY not in bytes(found).decode()
            assert "the key is" in msgspec.json.decode(found)["text"]


@case
async def bodies_come_back_byte_for_byte(kit: Kit) -> None:
    bodies = [
        b"{ }",
        b'{"b":1,"a":2.50,"a":3}',
        '{"text":"häß 漢字 🪢 \u202e"}'.encode(),
        rb"""{"nul":"\u0000","quote":"\"'\\"}""",
        b"null",
        b"[" + b"1," * 500 + b"1]",
        b'"%s ? $1 %(x)s"',
    ]
    async with kit.store() as store:
        await create(store)
        for n, body in enumerate(bodies):
            await store.commit(Commit(session="s1", entries=(NewEntry(type="tüp", body=body, id=f"id-漢-{n}"),)))
        log = await everything(store)
        assert [bytes(entry.body) for entry in log] == bodies
        assert [entry.id for entry in log] == [f"id-漢-{n}" for n in range(len(bodies))]
        assert {entry.type for entry in log} == {"tüp"}


@case
async def a_megabyte_is_no_matter(kit: Kit) -> None:
    body = msgspec.json.encode({"text": "漢" * (_MEGABYTE // 3)})
    async with kit.store() as store:
        await create(store)
        await store.commit(Commit(session="s1", entries=(NewEntry(type="t", body=body, id="big"),)))
        await store.commit(
            appending("b", checkpoint=NewCheckpoint(message_count=1, last_message_id=None, snapshot=body))
        )
        kept = await store.checkpoint("s1")
        assert kept is not None
        assert bytes((await store.read("s1", limit=1))[0].body) == bytes(kept.snapshot) == body
