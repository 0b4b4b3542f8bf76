"""What happens to a commit before it is written."""

from __future__ import annotations

import pytest

from holdfast.faults import Redactor
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
def test_B105_each_part_is_masked(name):
    commit = Commit(session="s", **{other: part(CANARY if other == name else CLEAN) for other, part in PARTS.items()})
    ready = prepared(commit, MASK)
    assert getattr(ready, name) == PARTS[name](b'{"a":"[redacted]"}')
    assert all(getattr(ready, other) is getattr(commit, other) for other in PARTS if other != name)
