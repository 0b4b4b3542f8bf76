"""Cases: which names, texts and secrets a store rejects, and which bodies it keeps byte for byte."""

from __future__ import annotations

import msgspec

from holdfast.stores import Claim, Commit, NewAudit, NewCheckpoint, NewEntry, NewSession
from holdfast.testing.stores.conformance import CANARY, Kit, appending, audit, case, create, everything, raises_fault

__all__: list[str] = []

# Path traversal, spaces, option-like names, excess length, other alphabets, control characters, SQL quotes.
_INVALID_NAMES = ("", "../s1", "a b", "-a", "x" * 129, "ü", "a\n", "a/b", "a'b", "a\x00b")
# PostgreSQL cannot store NUL or lone surrogates. All stores must reject a text that one of them cannot keep.
_INVALID_TEXTS = ("", "a\x00b", "\ud800", "x" * 1_025)
_MEGABYTE = 1_000_000


@case
async def an_invalid_name_is_rejected(kit: Kit) -> None:
    async with kit.store() as store:
        for name in _INVALID_NAMES:
            with raises_fault("CONFIG_OPTION_INVALID"):
                await store.commit(Commit(session=name, create=NewSession(manifest=b"{}")))
            for call in (store.session(name), store.read(name), store.checkpoint(name), store.acquire(name, "a", 1)):
                with raises_fault("CONFIG_OPTION_INVALID"):
                    await call
        for chain in _INVALID_NAMES[1:]:
            with raises_fault("CONFIG_OPTION_INVALID"):
                await store.commit(Commit(chain=chain, audit=(audit(),)))
        with raises_fault("CONFIG_OPTION_INVALID"):
            await store.commit(Commit(audit=(audit(),)))
        assert await store.sessions() == []
        assert await store.chains() == []


@case
async def a_name_may_have_its_full_length(kit: Kit) -> None:
    async with kit.store() as store:
        # The name has all allowed characters and the full length of 128.
        name = "aA0_.:@-" * 16
        await create(store, name)
        assert (await store.session(name)).id == name


@case
async def text_that_some_store_cannot_keep_is_rejected(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        for text in _INVALID_TEXTS:
            for commit in (
                Commit(session="s1", entries=(NewEntry(type="t", body=b"1", id=text),)),
                Commit(session="s1", entries=(NewEntry(type=text, body=b"1", id="a"),)),
                Commit(session="s1", claim=Claim(client=text, id="m", body_hash=b"h")),
                Commit(session="s1", claim=Claim(client="c", id=text, body_hash=b"h")),
            ):
                with raises_fault("CONFIG_OPTION_INVALID"):
                    await store.commit(commit)
        with raises_fault("CONFIG_OPTION_INVALID"):
            await store.commit(Commit(session="s1", entries=(NewEntry(type="t", body=b'"\xff"', id="a"),)))
        assert (await store.session("s1")).top == 0


@case
async def a_secret_is_rejected_as_a_name(kit: Kit) -> None:
    async with kit.store() as store:
        await create(store)
        for commit in (
            Commit(session=CANARY, create=NewSession(manifest=b"{}")),
            Commit(chain=CANARY, audit=(audit(),)),
            Commit(session="s1", entries=(NewEntry(type="t", body=b"1", id=f"x{CANARY}"),)),
            Commit(session="s1", entries=(NewEntry(type=CANARY, body=b"1", id="a"),)),
            Commit(session="s1", claim=Claim(client=CANARY, id="m", body_hash=b"h")),
            Commit(session="s1", claim=Claim(client="c", id=CANARY, body_hash=b"h")),
            Commit(session="s1", audit=(NewAudit(kind="Turn", correlation=CANARY, payload=b"1"),)),
        ):
            with raises_fault("CONFIG_OPTION_INVALID"):
                await store.commit(commit)
        assert [record.id for record in await store.sessions()] == ["s1"]
        assert await store.chains() == []


@case
async def a_known_secret_is_not_stored(kit: Kit) -> None:
    body = msgspec.json.encode({"text": f"the key is {CANARY}.", CANARY: [CANARY]})
    async with kit.store() as store:
        await create(store)
        for commit in (
            Commit(session="s2", create=NewSession(manifest=body)),
            Commit(session="s1", manifest=body),
            Commit(
                session="s1", entries=(NewEntry(type="t", body=b"1", id="a"), NewEntry(type="t", body=body, id="b"))
            ),
            Commit(
                session="s1",
                checkpoint=NewCheckpoint(message_count=1, last_message_id="a", snapshot=body),
                audit=(audit(),),
            ),
            Commit(session="s1", claim=Claim(client="c", id="m", body_hash=b"h", result=body)),
        ):
            with raises_fault("CONFIG_OPTION_INVALID"):
                await store.commit(commit)
        # A rejected commit stored nothing at all.
        assert [record.id for record in await store.sessions()] == ["s1"]
        assert ((await store.session("s1")).top, await store.checkpoint("s1"), await store.chains()) == (0, None, [])


@case
async def a_known_secret_is_masked_in_the_audit_trail(kit: Kit) -> None:
    body = msgspec.json.encode({"text": f"the key is {CANARY}.", CANARY: [CANARY]})
    async with kit.store() as store:
        await create(store)
        await store.commit(Commit(session="s1", audit=(NewAudit(kind="Turn", correlation="r", payload=body),)))
        (sealed,) = await store.audit("session:s1")
        assert CANARY not in bytes(sealed.payload).decode()
        assert msgspec.json.decode(sealed.payload)["text"] == "the key is [redacted]."


@case
async def what_looks_like_a_secret_is_stored_exactly(kit: Kit) -> None:
    bodies = [
        b'{"code":"password = getpass()","key":"sk-ant-api03-AbCd_1234-EfGh","api_key":["abcdef123456"],"password":12345678}',
        b'{"next_page_token": "CAUQAA", "url": "https://bob:abcdef123456@host/", "mask": "[redacted]"}',
    ]
    async with kit.store() as store:
        await store.commit(Commit(session="s1", create=NewSession(manifest=bodies[0])))
        whole = Commit(
            session="s1",
            entries=tuple(NewEntry(type="t", body=body, id=f"e{n}") for n, body in enumerate(bodies)),
            checkpoint=NewCheckpoint(message_count=1, last_message_id="a", snapshot=bodies[1]),
            claim=Claim(client="c", id="m", body_hash=b"h", result=bodies[0]),
            audit=(NewAudit(kind="Turn", correlation="r", payload=bodies[0]),),
        )
        first = await store.commit(whole)
        again = await store.commit(whole)
        kept = await store.checkpoint("s1")
        assert kept is not None
        assert [bytes(entry.body) for entry in await everything(store)] == bodies
        assert bytes(kept.snapshot) == bodies[1]
        assert bytes((await store.session("s1")).manifest) == bytes(first.result) == bytes(again.result) == bodies[0]
        # The audit trail is read by other people, so it is masked.
        (sealed,) = await store.audit("session:s1")
        shown = bytes(sealed.payload).decode()
        assert [secret for secret in ("sk-ant-api03", "abcdef123456", "12345678") if secret in shown] == []


@case
async def bodies_come_back_byte_for_byte(kit: Kit) -> None:
    # The bodies contain spaces, duplicate keys, other writing systems, escapes, and placeholders of SQL drivers.
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
async def a_body_of_a_megabyte_is_kept(kit: Kit) -> None:
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
