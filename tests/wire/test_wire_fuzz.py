"""The decoder under random frames: it never raises, never takes long, and agrees with a slow reader that is plainly right."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest

from holdfast.wire.envelope import MAX_DEPTH, Envelope, Invalid, encode, is_timestamp, read
from holdfast.wire.examples import example
from holdfast.wire.messages import FROM_CLIENT, FROM_SERVER, read_payload

SEEDS = [json.dumps(example(type_, from_client=True)) for type_ in FROM_CLIENT]
SEEDS += [json.dumps(example(type_, from_client=False), ensure_ascii=False) for type_ in FROM_SERVER]
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PIECES = [
    *'{}[]":,\\ \n\t',
    *("null", "true", "NaN", "Infinity", "-", "1e999", "-0", "1.0", "01", "1E5", "9" * 18, "9" * 19, "9" * 20, "9" * 70),
    *("18446744073709551615", "18446744073709551616", "-9223372036854775809", "0." + "1" * 40, "0." + "1" * 80),
    *('"\\ud800"', '"\\ud83d\\ude00"', "\ud800", "\ufeff", "\x00", "\x7f", "é", "😀", '"\\u0000"'),
    *('"offset":5', '"offset":1.0', '"offset":-1', '"offset":null', '"session_id":null', '"type":"auth",', '"payload":{},'),
    *("[" * 70, "{" * 70, "[" * 60 + "]" * 60, '{"a":' * 66 + "1" + "}" * 66, "[],", '["a"],' * 30),
    *('"2026-02-29T00:00:00Z"', '"2024-02-29T00:00:00+01:00"', '"0000-01-01T00:00:00Z"', '"2026-11-15T23:59:60Z"'),
]  # fmt: skip


def mutated(rng: random.Random) -> str:
    """Return a message with a few changes: pieces put in, parts taken out, doubled, or taken from another message."""
    text = rng.choice(SEEDS)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.choice((0, 1, 1, 4, 30)))
        match rng.randrange(5):
            case 0:
                text = text[:at] + rng.choice(PIECES) + text[to:]
            case 1:
                text = text[:at] + text[to:]
            case 2:
                text = text[:to] + text[at:to] * rng.choice((1, 2, 80)) + text[to:]
            case 3:
                text = text[:at] + rng.choice(SEEDS)[at:]
            case _:
                text = text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0x11_0000)))) + text[to:]
    return text


# --- a reader that takes its time ---


class Rejected(Exception):
    pass


class Pairs:
    """An object with all its pairs: what a second equal key hides must be right, too."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def number(text: str) -> Any:
    if len(text) > 64:
        raise Rejected
    value = float(text) if re.search("[.eE]", text) else int(text)
    if value in (float("inf"), float("-inf")) or (isinstance(value, int) and not -(2**63) <= value < 2**64):
        raise Rejected
    return value


def constant(_: str) -> Any:
    raise Rejected


def check(value: Any, depth: int = 0) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Rejected from None
    elif isinstance(value, Pairs):
        if depth == MAX_DEPTH:
            raise Rejected
        for key, each in value.pairs:
            check(key)
            check(each, depth + 1)
    elif isinstance(value, list):
        if depth == MAX_DEPTH:
            raise Rejected
        for each in value:
            check(each, depth + 1)


def plain(value: Any) -> Any:
    if isinstance(value, Pairs):
        return {key: plain(each) for key, each in value.pairs}
    return [plain(each) for each in value] if isinstance(value, list) else value


def slow_read(frame: str) -> Envelope | None:
    """Return the message of a frame, or None if it has none."""
    try:
        found = json.loads(
            frame, parse_int=number, parse_float=number, parse_constant=constant, object_pairs_hook=Pairs
        )
        check(found)
        found = plain(found)
    except (ValueError, Rejected, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    kept = {key: found[key] for key in ("session_id", "epoch", "re", "offset") if found.get(key) is not None}
    texts = [found.get("type"), found.get("id"), *(kept.get(key, "") for key in ("session_id", "epoch", "re"))]
    offset = kept.get("offset", 0)
    if (
        not all(isinstance(text, str) and len(text) <= 256 for text in texts)
        or not re.fullmatch("[a-z_]{1,64}", found["type"])
        or not UUID.fullmatch(found["id"])
        or not is_timestamp(found.get("timestamp"))
        or not isinstance(found.get("payload"), dict)
        # An empty text means that the field is not there.
        or not (offset == "" or (type(offset) is int and 0 <= offset < 2**53))
    ):
        return None
    four = {key: found[key] for key in ("type", "id", "timestamp", "payload")}
    return Envelope(**four, **{key: value for key, value in kept.items() if value != ""})


def fuzz(seed: int, count: int) -> tuple[int, int]:
    rng = random.Random(seed)
    accepted = 0
    for number_ in range(count):
        frame = mutated(rng)
        message = read(frame)
        expected = slow_read(frame)
        assert (message if isinstance(message, Envelope) else None) == expected, (seed, number_, frame)
        if isinstance(message, Envelope):
            accepted += 1
            assert read(encode(message)) == message, (seed, number_, frame)
            if message.type in FROM_CLIENT:
                read_payload(message.type, message.payload, message.id)
        else:
            assert message.violations, (seed, number_, frame)
            # The reply can be sent, whatever the frame was.
            assert message.fault.context["violations"]
    return accepted, count


def test_fuzzed_frames_are_read_as_a_slow_reader_reads_them() -> None:
    accepted, count = fuzz(seed=random.randrange(2**32), count=3000)
    assert 0.1 < accepted / count < 0.9  # both sides of the line are visited


@pytest.mark.soak
def test_a_million_fuzzed_frames_are_read_as_a_slow_reader_reads_them() -> None:
    fuzz(seed=random.randrange(2**32), count=1_000_000)


# --- frames that make a careless reader slow ---

HOSTILE = {
    "a string without an end, full of quotes": '"' + '\\"[' * 100_000,
    "many brackets that are not deep": "[" + "[]," * 75_000 + "[]]",
    "the deepest that is allowed, many times": "[" * MAX_DEPTH + "],[" * 75_000,
    "many strings": '["' + '","' * 75_000 + '"]',
    "one long string of escapes, and brackets": '"' + '\\"' * 100_000 + '"' + "[" * 100,
    "one number": "[" + "9" * 300_000 + "]",
    "many long numbers": "[" + "1234567890123456789," * 15_000 + "1]",
    "brackets that never close": "[" * 300_000,
    "brackets that were never opened": "]" * 300_000,
    "backslashes": "[" * 65 + '"' + "\\" * 300_000,
    "minus signs": "[" * 65 + "-1" * 150_000,
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_frame_holds_up_the_other_clients(frame: str) -> None:
    started = time.process_time()
    assert isinstance(read(frame), Invalid)
    # A reader that goes back over the 300 kB needs minutes. A collection of a large heap may fall into this time.
    assert time.process_time() - started < 5
