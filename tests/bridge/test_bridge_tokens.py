"""Tokens: made once, stored as digests, compared, revoked while a server runs; tickets for browsers."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.access.lockout import Lockout, LockoutLimits
from holdfast.bridge.access.private_files import read_private, state_folder, write_private
from holdfast.bridge.access.tokens import TICKET_S, RejectedToken, Tokens
from holdfast.faults import HoldfastError, InvalidError
from holdfast.runtime import redactor_for
from holdfast.testing import VirtualClock

PEER = "192.0.2.7"
YEAR = 365 * 86_400.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def code_of(call) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.fault.code


def test_a_token_tells_who_holds_it(path, clock):
    tokens = Tokens(path, clock=clock)
    made = tokens.create("Ada's phone", role="observer", sessions=("release-42",))

    assert tokens.identify(made.text, peer=PEER) == TokenHolder(
        token_id=made.record.id,
        kind="device",
        name="Ada's phone",
        role="observer",
        sessions=frozenset({"release-42"}),
        expires_at=None,
    )
    # Another process reads the same file.
    assert Tokens(path, clock=clock).identify(made.text, peer=PEER).name == "Ada's phone"


def test_B86_no_secret_is_stored_and_only_the_owner_reads_the_file(path, clock):
    made = Tokens(path, clock=clock).create("phone")
    secret = made.text.rsplit("_", 1)[-1] if "_" not in made.text[-43:] else made.text[-43:]

    assert secret not in path.read_text()
    assert secret not in repr(made.record)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.glob(".tokens.json.*")) == [path.parent / ".tokens.json.lock"]


def test_B86_what_a_token_looks_like_is_masked_wherever_it_is_printed(clock):
    tokens = Tokens(clock=clock)
    for kind in ("device", "hook", "metrics", "admin"):
        made = tokens.create("x", kind=kind)
        assert made.text not in redactor_for().text(f"GET /?x={made.text} failed")
    identity = tokens.identify(made.text, peer=PEER)
    ticket = tokens.make_ticket(identity)
    assert ticket[-43:] not in redactor_for().text(f"the ticket {ticket} came twice")


def test_B86_an_error_about_a_wrong_token_does_not_hold_it(clock):
    tokens = Tokens(clock=clock)
    with pytest.raises(HoldfastError) as caught:
        tokens.identify("my-own-secret-in-the-wrong-place", peer=PEER)
    fault = caught.value.fault
    assert fault.code == "AUTH_INVALID_TOKEN"
    assert "my-own-secret" not in f"{fault!r} {fault.for_user()} {fault.for_audit()} {caught.value}"


def test_a_token_has_256_random_bits(clock):
    tokens = Tokens(clock=clock)
    texts = {tokens.create("x").text for _ in range(50)}
    assert len(texts) == 50
    assert {len(text.split("_", 3)[3]) for text in texts} == {43}  # 32 bytes in base64


@pytest.mark.parametrize("change", ["secret", "kind", "id", "cut", "longer", "space", "newline"])
def test_a_token_that_differs_anywhere_is_wrong_in_the_same_way(clock, change):
    tokens = Tokens(clock=clock)
    text = tokens.create("phone").text
    other = tokens.create("other").text
    changed = {
        "secret": text[:-1] + ("A" if text[-1] != "A" else "B"),
        "kind": text.replace("hf_device_", "hf_admin_"),
        "id": other[:26] + text[26:],
        "cut": text[:-1],
        "longer": text + "A",
        "space": f" {text}",
        "newline": f"{text}\n",
    }[change]
    assert code_of(lambda: tokens.identify(changed, peer=PEER)) == "AUTH_INVALID_TOKEN"


def test_no_token_is_not_a_guess(clock):
    tokens = Tokens(clock=clock)
    assert code_of(lambda: tokens.identify("", peer=PEER)) == "AUTH_REQUIRED"
    assert tokens.lockout.wrong_count == 0


def test_a_token_expires_by_the_wall_clock(path, clock):
    tokens = Tokens(path, clock=clock)
    made = tokens.create("CI", kind="hook", expires_in=60)
    clock.advance(59)
    assert tokens.identify(made.text, peer=PEER).expires_at == made.record.created_at + 60
    clock.advance(1)
    assert code_of(lambda: tokens.identify(made.text, peer=PEER)) == "AUTH_TOKEN_EXPIRED"


def test_B49_a_revoked_token_says_so_and_is_announced_once(path, clock):
    tokens = Tokens(path, clock=clock)
    made = tokens.create("phone")
    revoked: list[str] = []
    tokens.watch(revoked.append)

    tokens.revoke("phone")
    tokens.revoke(made.record.id)

    assert revoked == [made.record.id]
    assert code_of(lambda: tokens.identify(made.text, peer=PEER)) == "AUTH_TOKEN_REVOKED"
    # Whoever has only the id learns nothing.
    assert code_of(lambda: tokens.identify(made.text[:-1] + "_", peer=PEER)) == "AUTH_INVALID_TOKEN"


def test_B49_a_server_sees_what_another_process_revoked(path, clock):
    server = Tokens(path, clock=clock)
    made = server.create("phone")
    revoked: list[str] = []
    server.watch(revoked.append)

    program = f"from holdfast.bridge.access.tokens import Tokens; import pathlib; Tokens(pathlib.Path({str(path)!r})).revoke('phone')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    server.reload()

    assert revoked == [made.record.id]
    assert code_of(lambda: server.identify(made.text, peer=PEER)) == "AUTH_TOKEN_REVOKED"


def test_a_deleted_file_takes_its_tokens_with_it(path, clock):
    tokens = Tokens(path, clock=clock)
    made = tokens.create("phone")
    revoked: list[str] = []
    tokens.watch(revoked.append)
    path.unlink()
    assert code_of(lambda: tokens.identify(made.text, peer=PEER)) == "AUTH_INVALID_TOKEN"
    assert revoked == [made.record.id]


def test_revoking_needs_one_token(path, clock):
    tokens = Tokens(path, clock=clock)
    tokens.create("phone")
    second = tokens.create("phone")
    with pytest.raises(InvalidError, match="names 2"):
        tokens.revoke("phone")
    with pytest.raises(InvalidError, match="names none"):
        tokens.revoke("tablet")
    tokens.revoke(second.record.id)
    tokens.revoke("phone")
    assert tokens.kinds == frozenset()


def test_two_that_change_the_file_at_once_lose_nothing(path):
    def create(number: int) -> None:
        Tokens(path).create(f"token {number}")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(record.name for record in Tokens(path).all()) == [f"token {number}" for number in range(8)]


def test_what_ended_long_ago_is_forgotten(path, clock):
    tokens = Tokens(path, clock=clock)
    tokens.create("old", expires_in=60)
    tokens.create("kept")
    clock.advance(YEAR)
    tokens.create("new")
    assert [record.name for record in tokens.all()] == ["kept", "new"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema":"holdfast.tokens/9","tokens":[]}', b"[]", b"\xff"])
def test_a_damaged_file_is_an_error_and_is_not_overwritten(path, content):
    write_private(path, content)
    assert code_of(lambda: Tokens(path)) == "CONFIG_INVALID"
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_not_used(path, mode):
    write_private(path, b"{}")
    path.chmod(mode)
    with pytest.raises(HoldfastError, match=r"can be read by other users \(mode 6.*chmod 600"):
        Tokens(path)


def test_a_folder_that_others_can_write_to_is_not_used(path):
    write_private(path, b"{}")
    path.parent.chmod(0o777)
    with pytest.raises(HoldfastError, match="chmod go-w"):
        read_private(path)
    with pytest.raises(HoldfastError, match="chmod go-w"):
        write_private(path, b"")


def test_the_state_folder_is_the_users_or_the_one_that_is_named():
    assert state_folder({"XDG_STATE_HOME": "/x/state"}) == Path("/x/state/holdfast/bridge")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/holdfast/bridge"
    assert state_folder({"HOLDFAST_BRIDGE_HOME": "/srv/bridge"}) == Path("/srv/bridge")


def test_tokens_of_the_settings_are_kept_nowhere(path, clock):
    tokens = Tokens(path, given={"device": "a token of ours", "hook": "another"}, clock=clock)
    assert tokens.identify("a token of ours", peer=PEER).kind == "device"
    assert tokens.identify("another", peer=PEER).kind == "hook"
    assert tokens.kinds == {"device", "hook"}
    tokens.create("stored")
    assert json.loads(path.read_text())["tokens"][0]["name"] == "stored"
    assert "a token of ours" not in path.read_text()


def test_a_kind_is_for_one_thing_and_an_admin_for_all(clock):
    tokens = Tokens(clock=clock)
    hook = tokens.identify(tokens.create("CI", kind="hook").text, peer=PEER)
    admin = tokens.identify(tokens.create("root", kind="admin").text, peer=PEER)
    hook.require("hook")
    admin.require("hook")
    assert code_of(lambda: hook.require("device")) == "AUTH_INSUFFICIENT_SCOPE"
    assert not hook.may_see("release-42")
    assert admin.may_see("release-42")


@pytest.mark.parametrize(
    "wrong", [{"kind": "root"}, {"role": "king"}, {"expires_in": 0}, {"expires_in": float("nan")}, {"name": " "}]
)
def test_wrong_options_are_named(clock, wrong):
    with pytest.raises(InvalidError):
        Tokens(clock=clock).create(**{"name": "x", **wrong})


# Guessing


def test_B85_a_thousand_wrong_tokens_lock_their_address_and_no_other(clock):
    tokens = Tokens(clock=clock)
    right = tokens.create("phone").text
    codes = [code_of(partial(tokens.identify, f"guess {number}", peer="127.0.0.1")) for number in range(1000)]

    # Loopback is not exempt. A right token is compared always: nobody can guess 256 bits.
    assert codes[:11] == ["AUTH_INVALID_TOKEN"] * 11
    assert set(codes[11:]) == {"CONN_RATE_LIMITED"}
    assert tokens.identify(right, peer="127.0.0.1").name == "phone"
    assert tokens.identify(right, peer=PEER).name == "phone"
    assert tokens.lockout.wrong_count == 11
    assert tokens.lockout.lock_count == 1


def test_B85_a_locked_address_hears_how_long_and_the_time_grows(clock):
    tokens = Tokens(clock=clock, lockout=Lockout(LockoutLimits(attempts=1)))
    right = tokens.create("phone").text
    waits: list[float] = []
    for _ in range(13):
        while code_of(lambda: tokens.identify("guess", peer=PEER)) != "CONN_RATE_LIMITED":
            pass
        with pytest.raises(HoldfastError) as caught:
            tokens.identify("guess", peer=PEER)
        waits.append(caught.value.fault.retry_after)
        clock.advance(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    assert tokens.identify(right, peer=PEER).name == "phone"


def test_B85_what_is_rejected_is_reported_without_the_secret(clock):
    tokens = Tokens(clock=clock, lockout=Lockout(LockoutLimits(attempts=1)))
    made = tokens.create("phone")
    rejected: list[RejectedToken] = []
    tokens.watch_rejected(rejected.append)
    for _ in range(3):
        code_of(lambda: tokens.identify(made.text[:-2] + "__", peer=PEER))
    assert rejected == [
        RejectedToken(PEER, "AUTH_INVALID_TOKEN", made.record.id, locks=False),
        RejectedToken(PEER, "AUTH_INVALID_TOKEN", made.record.id, locks=True),
        RejectedToken(PEER, "CONN_RATE_LIMITED", made.record.id, locks=False),
    ]


# Tickets


def test_a_ticket_stands_for_the_token_once(clock):
    tokens = Tokens(clock=clock)
    identity = tokens.identify(tokens.create("page").text, peer=PEER)
    ticket = tokens.make_ticket(identity)
    assert tokens.redeem(ticket, peer="198.51.100.1") == identity
    assert code_of(lambda: tokens.redeem(ticket, peer=PEER)) == "AUTH_INVALID_TOKEN"


def test_a_ticket_expires_after_half_a_minute(clock):
    tokens = Tokens(clock=clock)
    identity = tokens.identify(tokens.create("page").text, peer=PEER)
    fresh, stale = tokens.make_ticket(identity), tokens.make_ticket(identity)
    clock.advance(TICKET_S - 0.1)
    tokens.redeem(fresh, peer=PEER)
    clock.advance(0.1)
    assert code_of(lambda: tokens.redeem(stale, peer=PEER)) == "AUTH_TOKEN_EXPIRED"


def test_a_ticket_of_a_revoked_token_is_worth_nothing(clock):
    tokens = Tokens(clock=clock)
    ticket = tokens.make_ticket(tokens.identify(tokens.create("page").text, peer=PEER))
    tokens.revoke("page")
    assert code_of(lambda: tokens.redeem(ticket, peer=PEER)) == "AUTH_TOKEN_REVOKED"


def test_guessed_tickets_lock_too_and_many_tickets_do_not_pile_up(clock):
    tokens = Tokens(clock=clock)
    identity = tokens.identify(tokens.create("page").text, peer=PEER)
    tickets = [tokens.make_ticket(identity) for _ in range(100)]
    assert code_of(lambda: tokens.redeem(tickets[0], peer=PEER)) == "AUTH_INVALID_TOKEN"
    assert tokens.redeem(tickets[-1], peer=PEER) == identity
    codes = {code_of(lambda: tokens.redeem("guess", peer=PEER)) for _ in range(20)}
    assert codes == {"AUTH_INVALID_TOKEN", "CONN_RATE_LIMITED"}


def test_a_ticket_of_a_token_of_the_settings_works(clock):
    tokens = Tokens(given={"device": "a token of ours"}, clock=clock)
    identity = tokens.identify("a token of ours", peer=PEER)
    assert tokens.redeem(tokens.make_ticket(identity), peer=PEER) == identity
