"""Pairing: a code becomes a token once."""

from __future__ import annotations

import contextlib
import json
import stat
import subprocess
import sys
import threading

import pytest

from holdfast.bridge.access.pairing import Pairing, PairLink, pair_link, qr_code, read_pair_link
from holdfast.bridge.access.tokens import Tokens
from holdfast.faults import HoldfastError, InvalidError
from holdfast.testing import VirtualClock

PEER = "192.0.2.7"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def tokens(tmp_path, clock) -> Tokens:
    return Tokens(tmp_path / "state" / "tokens.json", clock=clock)


@pytest.fixture
def pairing(tokens, clock) -> Pairing:
    return Pairing(tokens, clock=clock)


def code_of(call) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.fault.code


def test_a_code_becomes_a_device_token_with_what_was_offered(pairing, tokens, clock):
    offer = pairing.offer(role="observer", sessions=("release-42",), token_expires_in=60)
    made = pairing.redeem(offer.code, " Ada's phone ", peer=PEER)
    holder = tokens.identify(made.text, peer=PEER)
    assert (holder.kind, holder.name, holder.role) == ("device", "Ada's phone", "observer")
    assert holder.sessions == {"release-42"}
    assert holder.expires_at == clock.wall() + 60


def test_a_code_works_once_and_for_five_minutes(pairing, clock):
    used, late, in_time = (pairing.offer().code for _ in range(3))
    pairing.redeem(used, "phone", peer=PEER)
    assert code_of(lambda: pairing.redeem(used, "phone", peer=PEER)) == "AUTH_INVALID_TOKEN"
    clock.advance(299.9)
    assert pairing.is_waiting(in_time)
    pairing.redeem(in_time, "tablet", peer=PEER)
    clock.advance(0.1)
    assert not pairing.is_waiting(late)
    assert code_of(lambda: pairing.redeem(late, "phone", peer=PEER)) == "AUTH_INVALID_TOKEN"


def test_another_process_makes_the_code_and_it_is_stored_as_a_digest(tokens, clock, tmp_path):
    program = (
        "import pathlib; from holdfast.bridge.access.tokens import Tokens; from holdfast.bridge.access.pairing import Pairing\n"
        f"print(Pairing(Tokens(pathlib.Path({str(tokens.path)!r}))).offer().code)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    code = done.stdout.strip()
    path = tokens.path.with_name("pairings.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert code not in path.read_text()
    assert code.replace("-", "") not in path.read_text()
    assert Pairing(Tokens(tokens.path)).redeem(code, "phone", peer=PEER).record.name == "phone"
    assert json.loads(path.read_text())["waiting"] == []


@pytest.mark.parametrize("typed", [str.lower, lambda code: code.replace("-", " "), lambda code: f" {code}\n"])
def test_a_code_may_be_typed_as_people_type(pairing, typed):
    assert pairing.redeem(typed(pairing.offer().code), "phone", peer=PEER).text


def test_B85_wrong_codes_lock_as_wrong_tokens_do(pairing):
    right = pairing.offer().code
    codes = [code_of(lambda: pairing.redeem("AAAA-AAAA-AAAA-AAAA", "x", peer=PEER)) for _ in range(20)]
    assert codes == ["AUTH_INVALID_TOKEN"] * 11 + ["CONN_RATE_LIMITED"] * 9
    assert code_of(lambda: pairing.redeem(right, "x", peer=PEER)) == "CONN_RATE_LIMITED"
    assert pairing.redeem(right, "x", peer="198.51.100.1").text


def test_of_many_that_redeem_at_once_one_gets_a_token(tmp_path):
    tokens = Tokens(tmp_path / "tokens.json")
    code = Pairing(tokens).offer().code
    made: list[str] = []

    def redeem(number: int) -> None:
        with contextlib.suppress(HoldfastError):
            made.append(Pairing(Tokens(tokens.path)).redeem(code, f"phone {number}", peer=f"192.0.2.{number}").text)

    threads = [threading.Thread(target=redeem, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == len(Tokens(tokens.path).all()) == 1


def test_a_code_without_a_name_is_not_used_up(pairing):
    code = pairing.offer().code
    assert code_of(lambda: pairing.redeem(code, " ", peer=PEER)) == "CONFIG_OPTION_INVALID"
    assert pairing.is_waiting(code)


def test_a_link_holds_the_address_the_code_and_the_pins_and_no_token():
    pins = ("sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "sha256/aGk=")
    link = pair_link("https://192.168.1.5:3000/", "ABCD-EFGH-JKMN-PQRS", pins)
    assert read_pair_link(link) == PairLink("https://192.168.1.5:3000", "ABCD-EFGH-JKMN-PQRS", pins)
    # What follows the # stays in the browser.
    assert link.index("#") < link.index("ABCD")


@pytest.mark.parametrize("url", ["", "192.168.1.5:3000", "ftp://x", "https://x/?a=1", "https://"])
def test_an_address_that_is_none_is_named(url):
    with pytest.raises(InvalidError, match="url"):
        pair_link(url, "ABCD-EFGH-JKMN-PQRS")


@pytest.mark.parametrize(
    "link", ["", "https://x/", "https://x/#pair=short", "javascript:alert(1)#pair=ABCDEFGHJKMNPQRS"]
)
def test_a_link_of_somebody_else_is_named(link):
    with pytest.raises(InvalidError, match="link"):
        read_pair_link(link)


def test_a_QR_code_fits_into_a_terminal():
    link = pair_link("https://192.168.100.100:3000", "ABCD-EFGH-JKMN-PQRS", ["sha256/" + "A" * 43 + "="] * 2)
    lines = qr_code(link).splitlines()
    assert len(lines) < 36
    assert max(map(len, lines)) < 70
