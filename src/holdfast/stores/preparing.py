"""What every store does to a commit before it is written: check it, and mask the secrets in it.

Invariant: no secret that the redactor knows, and none that looks like one, gets into a store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.faults import InvalidError, Redactor
from holdfast.faults.redact import MASK
from holdfast.faults.secrets import is_secret_name, mask_secrets
from holdfast.stores.records import Commit, check_name

__all__ = ["Mask", "prepared"]

_CAP_AUDIT = 65_536
_LONGEST_TEXT = 1_024


class Mask:
    """Masks secrets in JSON text of any size, leaving it JSON. Text without secrets comes back as it is."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        # In JSON a secret may be written with escapes.
        self._written = tuple(
            {form for secret in redactor.secrets for form in (secret, msgspec.json.encode(secret)[1:-1].decode())}
        )

    def json(self, body: bytes) -> bytes:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidError.saying("body", "JSON in UTF-8", f"a byte that is none at {error.start}") from None
        if not any(form in text for form in self._written) and mask_secrets(text) == text:
            return body
        return msgspec.json.encode(self._walk(msgspec.json.decode(body)))

    def capped(self, body: bytes) -> bytes:
        """The same for the audit trail, whose strings are cut where they are too long (N2-16)."""
        masked = self.json(body)
        if len(masked) <= _CAP_AUDIT:
            return masked
        return msgspec.json.encode(self._redactor.value(msgspec.json.decode(masked)))

    def _walk(self, value: Any) -> Any:
        match value:
            case str():
                return self._text(value)
            case dict():
                return {self._text(name): self._named(name, kept) for name, kept in value.items()}
            case list():
                return [self._walk(item) for item in value]
            case _:
                return value

    def _named(self, name: str, value: Any) -> Any:
        return MASK if isinstance(value, str) and is_secret_name(name) else self._walk(value)

    def _text(self, text: str) -> str:
        for secret in self._redactor.secrets:
            text = text.replace(secret, MASK)
        return mask_secrets(text)


def prepared(commit: Commit, mask: Mask) -> Commit:
    """Return the commit as it may be stored."""
    _check(commit)
    checkpoint = commit.checkpoint
    return msgspec.structs.replace(
        commit,
        create=commit.create and msgspec.structs.replace(commit.create, manifest=mask.json(commit.create.manifest)),
        manifest=None if commit.manifest is None else mask.json(commit.manifest),
        entries=tuple(msgspec.structs.replace(entry, body=mask.json(entry.body)) for entry in commit.entries),
        checkpoint=checkpoint and msgspec.structs.replace(checkpoint, snapshot=mask.json(checkpoint.snapshot)),
        claim=commit.claim and msgspec.structs.replace(commit.claim, result=mask.json(commit.claim.result)),
        audit=tuple(msgspec.structs.replace(record, payload=mask.capped(record.payload)) for record in commit.audit),
    )


def _check(commit: Commit) -> None:
    if commit.session is not None:
        check_name("commit.session", commit.session)
    elif commit.entries or commit.state or commit.checkpoint or commit.claim or commit.create or not commit.chain:
        raise InvalidError.at("commit.session", "a session's id; without one only an audit chain is written", None)
    if commit.chain:
        check_name("commit.chain", commit.chain)
    for entry in commit.entries:
        _check_text("entry.id", entry.id)
        _check_text("entry.type", entry.type)
    if commit.claim is not None:
        _check_text("claim.client", commit.claim.client)
        _check_text("claim.id", commit.claim.id)
    if commit.checkpoint is not None and commit.checkpoint.last_message_id is not None:
        _check_text("checkpoint.last_message_id", commit.checkpoint.last_message_id)
    for record in commit.audit:
        _check_text("audit.correlation", record.correlation)


def _check_text(path: str, text: str) -> None:
    """Refuse what not every engine can hold in a column of text: NUL, and halves of characters."""
    if 0 < len(text) <= _LONGEST_TEXT and "\0" not in text and (text.isascii() or _encodes(text)):
        return
    raise InvalidError.at(path, f"1 to {_LONGEST_TEXT:,} characters, none of them NUL or a lone surrogate", text)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
