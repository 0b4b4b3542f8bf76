"""What may be stored, and what leaves a store with its secrets masked.

A secret that the redactor knows by configuration is not stored: the commit is rejected. Text that only looks like a secret is stored
exactly, because a program must get back what it stored. It is masked where content leaves: in the audit trail, in exports, on screens.

Invariant: no secret that the redactor knows gets into a store, and no text that looks like one gets into an audit trail.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.faults import InvalidError, Redactor
from holdfast.faults.redaction import MASK, PieceMask, is_secret_name, mask_secrets
from holdfast.runtime.secrets import process_redactor
from holdfast.stores.errors import reserved
from holdfast.stores.records import INTERNAL, Commit, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WITHOUT_SECRET: Final = "content without a configured secret"  # noqa: S105 - words
"""What `Mask.check` expects."""

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

SEALED = b'"hfe1.'
"""How JSON with ciphertext begins (`encryption.py`). Masking or cutting it would destroy it."""
WRAPPED = b'{"enc":'
"""How an encrypted manifest begins."""
_CAP_AUDIT = 65_536
"""The most bytes of a payload in the audit trail (N2-16)."""
_LONGEST_WORD = 11
_SHORTEST_ENCODED = 8
_LONGEST_TEXT = 1_024
"""The most characters of an id or type. A database index cannot hold much more."""


class Mask:
    """Finds and masks secrets in JSON of any size. JSON without secrets is returned unchanged."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._written = _forms(redactor.secrets)
        self._unstorable = tuple(secret for secret in redactor.secrets if not _is_word(secret))
        self._rejected = tuple(form.encode(errors="surrogatepass") for form in _forms(self._unstorable))

    def is_in(self, text: str) -> bool:
        """Whether a text contains a known secret."""
        # Most programs know no secret, and this is asked for every id that is stored.
        secrets = self._redactor.secrets
        return bool(secrets) and any(secret in text for secret in secrets)

    def check(self, path: str, body: bytes) -> None:
        """Raise `InvalidError` for JSON that holds a known secret, or is not UTF-8."""
        # Nearly all bodies are ASCII, and most programs know no secret.
        if not body.isascii():
            _text_of(body)
        for form in self._rejected:
            if form in body and not body.startswith(SEALED):
                raise InvalidError.saying(
                    path,
                    WITHOUT_SECRET,
                    "content with one: store the secret's name, and read the secret where it is used",
                )

    def storable(self, value: T) -> T:
        """Return a JSON value without the secrets that `check` rejects: a mask stands in their place.

        Text that only looks like a secret stays. A value without secrets is returned itself.
        """
        if not self._unstorable or not any(form in _written(value) for form in self._rejected):
            return value
        return self._without(value)  # type: ignore[no-any-return] # masks keep the shape of a value

    def pieces(self) -> PieceMask:
        """Return what does the same as `storable` with a text that comes in pieces."""
        return PieceMask(_forms(self._unstorable))

    def _without(self, value: Any) -> Any:
        match value:
            case str():
                for form in _forms(self._unstorable):
                    value = value.replace(form, MASK)
                return value
            case dict():
                return {self._without(name): self._without(kept) for name, kept in value.items()}
            case list() | tuple():
                return type(value)(self._without(item) for item in value)
            case int() | float():
                # A key may be a long number, and then a model may write it as one.
                return MASK if any(secret in str(value) for secret in self._unstorable) else value
            case _:
                return value

    def json(self, body: bytes) -> bytes:
        """Return JSON with its secrets masked: known ones, and text that looks like one."""
        text = _text_of(body)
        # Searching the text is much cheaper than decoding it, and nearly every body ends here.
        if not any(form in text for form in self._written) and not _may_name_one(text) and mask_secrets(text) == text:
            return body
        masked = msgspec.json.encode(self._walk(msgspec.json.decode(body)))
        return body if masked == body else masked

    def capped(self, body: bytes) -> bytes:
        """Mask a payload of the audit trail, and shorten its strings if it is too large (N2-16)."""
        if body.startswith(SEALED):
            return body
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
        # Under the name `password` any value is a secret, whatever it looks like: a text, a number, a list.
        return MASK if value is not None and is_secret_name(name) else self._walk(value)

    def _text(self, text: str) -> str:
        # Mask known secrets first, because a pattern could mask only a part of a known secret.
        for form in self._written:
            text = text.replace(form, MASK)
        return mask_secrets(text)


def mask_of(store: object) -> Mask:
    """Return what knows the secrets that may not be in a store. A store of somebody else's knows those of the process."""
    known = getattr(store, "mask", None)
    return known if isinstance(known, Mask) else Mask(process_redactor())


def _forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return the secrets as JSON may write them: with and without escapes, and inside of bytes in base64 and hex."""
    # In order: a longer secret may hold a shorter one, and must be masked whole.
    return tuple(
        dict.fromkeys(
            form
            for secret in secrets
            for form in (
                msgspec.json.encode(secret)[1:-1].decode(),
                secret,
                *_encoded(secret.encode(errors="surrogatepass")),
            )
        )
    )


def _encoded(secret: bytes) -> Iterator[str]:
    """Yield what base64 and hex make of a secret, whatever is before and after it in the same bytes."""
    # A short one would be found by chance.
    if len(secret) < _SHORTEST_ENCODED:
        return
    yield secret.hex()
    yield secret.hex().upper()
    # Three bytes become four characters. Those at the ends also depend on the bytes beside the secret.
    for before, first in ((0, 0), (1, 2), (2, 3)):
        length = before + len(secret)
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(before) + secret).decode()[first : length * 8 // 6]


def _written(value: Any) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else msgspec.json.encode(value)


def _is_word(secret: str) -> bool:
    # POSTGRES_PASSWORD=postgres: rejecting every text with that word would protect nothing and break programs.
    return len(secret) <= _LONGEST_WORD and (secret.isdigit() or (secret.isalpha() and secret[1:].islower()))


def _text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidError.saying("body", "JSON in UTF-8", f"an invalid byte at {error.start}") from None


_NAMED = re.compile(
    r'"[^"]{0,200}(?:key|secret|passw|pwd|passphrase|credential|token|authorization|cookie)s?"\s*:\s*["\d\[{]',
    re.IGNORECASE,
)


def _may_name_one(text: str) -> bool:
    """Whether a field may have a secret's name. Its value is a secret even if it is short, a number or a list."""
    return _NAMED.search(text) is not None


def prepared(commit: Commit, mask: Mask) -> Commit:
    """Return the commit to store, with its audit records masked; raise `InvalidError` for what may not be stored.

    Nearly every commit is returned unchanged.
    """
    if commit.session in INTERNAL:
        _check_internal(commit)
    if _only_appends(commit):
        check_name("commit.session", commit.session)
        for entry in commit.entries:
            _check_text("entry.id", entry.id, mask)
            _check_text("entry.type", entry.type, mask)
            mask.check("entry.body", entry.body)
        if commit.claim is not None:
            _check_text("claim.client", commit.claim.client, mask)
            _check_text("claim.id", commit.claim.id, mask)
            mask.check("claim.result", commit.claim.result)
        return commit
    _check(commit, mask)
    for path, body in _bodies(commit):
        mask.check(path, body)
    if not commit.audit:
        return commit
    audit = _each(commit.audit, "payload", mask.capped)
    return commit if audit is commit.audit else msgspec.structs.replace(commit, audit=audit)


def _check_internal(commit: Commit) -> None:
    """Raise for a commit that does anything to a session of the store itself but to make it or wrap its key anew."""
    made = commit.create.manifest if commit.create is not None else WRAPPED
    wrapped = made.startswith(WRAPPED) and (commit.manifest or WRAPPED).startswith(WRAPPED)
    rest = (commit.state, commit.entries, commit.checkpoint, commit.claim, commit.claims, commit.audit)
    if not wrapped or any(rest):
        raise reserved(commit.session or "")


def _only_appends(commit: Commit) -> bool:
    """Whether a commit has entries, at most a claim, and no other content. Nearly all are so, and their checks are the most frequent ones."""
    return (
        commit.session is not None
        and commit.create is None
        and not commit.audit
        and not commit.chain
        and commit.checkpoint is None
        and commit.manifest is None
        and not commit.claims
    )


def _bodies(commit: Commit) -> Iterator[tuple[str, bytes]]:
    """Yield the content of the application in a commit, with its path."""
    for entry in commit.entries:
        yield "entry.body", entry.body
    if commit.claim is not None:
        yield "claim.result", commit.claim.result
    for known in commit.claims:
        yield "claim.result", known.result
    if commit.checkpoint is not None:
        yield "checkpoint.snapshot", commit.checkpoint.snapshot
    if commit.manifest is not None:
        yield "manifest", commit.manifest
    if commit.create is not None:
        yield "manifest", commit.create.manifest


def _each(parts: tuple[S, ...], name: str, mask: Callable[[bytes], bytes]) -> tuple[S, ...]:
    masked = tuple([_with(part, name, mask) for part in parts])
    return parts if all(map(is_, masked, parts)) else masked


def _with(part: S, name: str, mask: Callable[[bytes], bytes]) -> S:
    """Return the part with one field masked; the same object if there was nothing to mask."""
    kept = getattr(part, name)
    masked = mask(kept)
    return part if masked is kept else msgspec.structs.replace(part, **{name: masked})


def _check(commit: Commit, mask: Mask) -> None:
    if commit.session is not None:
        check_name("commit.session", commit.session)
    elif commit.entries or commit.state or commit.checkpoint or commit.claim or commit.create or not commit.chain:
        raise InvalidError.at("commit.session", "a session's id; without one only an audit chain is written", None)
    if commit.chain:
        check_name("commit.chain", commit.chain)
    if commit.claims and commit.create is None:
        raise InvalidError.at("commit.claims", "claims only of a session that the commit creates", len(commit.claims))
    for path, text in _texts(commit):
        _check_text(path, text, mask)


def _texts(commit: Commit) -> Iterator[tuple[str, str]]:
    """Yield the texts that are stored unmasked, with their paths: ids, types and names by which things are found."""
    if commit.session is not None and commit.create is not None:
        yield "commit.session", commit.session
    if commit.chain:
        yield "commit.chain", commit.chain
    for entry in commit.entries:
        yield "entry.id", entry.id
        yield "entry.type", entry.type
    if commit.claim is not None:
        yield "claim.client", commit.claim.client
        yield "claim.id", commit.claim.id
    for known in commit.claims:
        yield "claim.client", known.client
        yield "claim.id", known.id
    if commit.checkpoint is not None and commit.checkpoint.last_message_id is not None:
        yield "checkpoint.last_message_id", commit.checkpoint.last_message_id
    for record in commit.audit:
        yield "audit.correlation", record.correlation


def _check_text(path: str, text: str, mask: Mask) -> None:
    """Raise `InvalidError` for text that some database cannot store: NUL, lone surrogates, too many characters; or for a secret."""
    if not (0 < len(text) <= _LONGEST_TEXT and "\0" not in text and (text.isascii() or _encodes(text))):
        raise InvalidError.at(path, f"1 to {_LONGEST_TEXT:,} characters, none of them NUL or a lone surrogate", text)
    if mask.is_in(text):
        # Ids are not masked, because two different ids would become the same.
        raise InvalidError.saying(path, "a text without a secret", "a text with a secret")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
