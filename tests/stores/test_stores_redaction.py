"""What happens to a commit before it is written."""

from __future__ import annotations

import base64

import msgspec
import pytest

from holdfast.faults import InvalidError, Redactor
from holdfast.stores import Claim, Commit, NewAudit, NewCheckpoint, NewEntry, NewSession
from holdfast.stores.redaction import Mask, prepared

CLEAN, CANARY = b'{"a":"nothing to hide"}', b'{"a":"canary-7f3a91"}'
PARTS = {
    "entries": lambda body: (NewEntry(type="t", body=CLEAN, id="1"), NewEntry(type="t", body=body, id="2")),
    "create": lambda body: NewSession(manifest=body),
    "manifest": lambda body: body,
    "checkpoint": lambda body: NewCheckpoint(message_count=1, last_message_id=None, snapshot=body),
    "claim": lambda body: Claim(client="c", id="1", body_hash=b"h", result=body),
    "audit": lambda body: (NewAudit(kind="Turn", correlation="r", payload=body),),
}
MASK = Mask(Redactor(("canary-7f3a91",)))


def test_a_commit_without_secrets_is_not_copied():
    commit = Commit(session="s", **{name: part(CLEAN) for name, part in PARTS.items()})
    assert prepared(commit, MASK) is commit


@pytest.mark.parametrize("name", PARTS)
def test_B105_a_known_secret_is_rejected_in_each_part_and_masked_in_the_audit_trail(name):
    commit = Commit(session="s", **{other: part(CANARY if other == name else CLEAN) for other, part in PARTS.items()})
    if name != "audit":
        with pytest.raises(InvalidError, match="expected content without a configured secret") as raised:
            prepared(commit, MASK)
        assert "canary" not in str(raised.value)
        return
    ready = prepared(commit, MASK)
    assert ready.audit == PARTS[name](b'{"a":"[redacted]"}')
    assert all(getattr(ready, other) is getattr(commit, other) for other in PARTS if other != name)


@pytest.mark.parametrize(
    "body", [b'{"a":"sk-ant-api03-AbCd_1234"}', b'{"password":"x","token":7}', b'{"u":"a://b:c@d"}']
)
def test_FD4_what_looks_like_a_secret_is_stored_exactly(body):
    commit = Commit(session="s", **{name: part(body) for name, part in PARTS.items() if name != "audit"})
    assert prepared(commit, MASK) is commit


@pytest.mark.parametrize(
    ("body", "masked"),
    [
        (b'{"api_key":["abc","d"],"n":1}', b'{"api_key":"[redacted]","n":1}'),
        (b'{"password":123456,"max_tokens":7}', b'{"password":"[redacted]","max_tokens":7}'),
        (b'{"a":[{"credentials":{"user":"x","value":"y"}}]}', b'{"a":[{"credentials":"[redacted]"}]}'),
        (b'{"text":"AccountKey=abcdef123456=="}', b'{"text":"AccountKey=[redacted]"}'),
        (b'{"secret":null,"next_page_token":"CAUQAA"}', b'{"secret":null,"next_page_token":"CAUQAA"}'),
    ],
)
def test_FD4_what_leaves_a_store_is_masked(body, masked):
    assert MASK.json(body) == masked


def test_a_password_that_is_an_ordinary_word_does_not_reject_every_text_with_it():
    mask = Mask(Redactor.knowing(["postgres", "12345678", "Changeme", "s3cretpassword"]))
    commit = Commit(session="s", entries=PARTS["entries"](b'{"a":"postgres changeme 12345678"}'))
    assert prepared(commit, mask) is commit
    assert mask.json(b'{"a":"on postgres"}') == b'{"a":"on [redacted]"}'
    with pytest.raises(InvalidError):
        prepared(Commit(session="s", entries=PARTS["entries"](b'{"a":"s3cretpassword"}')), mask)


SECRET = "canary-7f3a91/ü?~"
WRITTEN = {
    "base64": lambda raw: base64.b64encode(raw).decode(),
    "base64 for addresses": lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("="),
    "hex": lambda raw: raw.hex(),
    "HEX": lambda raw: raw.hex().upper(),
}


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"Bearer "])
@pytest.mark.parametrize("after", [b"", b"!", b"\xff\xff"])
@pytest.mark.parametrize("how", WRITTEN)
def test_XD13_a_known_secret_is_found_in_encoded_bytes_wherever_it_begins(how, before, after):
    mask = Mask(Redactor((SECRET,)))
    body = msgspec.json.encode({"n": 1, "text": WRITTEN[how](before + SECRET.encode() + after)})
    with pytest.raises(InvalidError, match="expected content without a configured secret"):
        prepared(Commit(session="s", entries=PARTS["entries"](body)), mask)
    (record,) = prepared(Commit(chain="c", audit=PARTS["audit"](body)), mask).audit
    assert b"[redacted]" in record.payload
    assert b"[redacted]" in msgspec.json.encode(mask.storable(msgspec.json.decode(body)))


def test_XD13_bytes_without_a_secret_are_stored_and_short_secrets_are_not_looked_for_in_them():
    mask = Mask(Redactor((SECRET, "ab-1")))
    for raw in (SECRET.encode()[1:], b"ab-1", bytes(range(256))):
        body = msgspec.json.encode([write(raw) for write in WRITTEN.values()])
        commit = Commit(session="s", entries=PARTS["entries"](body), audit=PARTS["audit"](body))
        assert prepared(commit, mask) is commit
