"""`Tokens`: who may use a bridge. Tokens are made, listed and revoked here, and looked up for each connection.

    tokens = Tokens(state_folder() / "tokens.json")
    made = tokens.create("Ada's phone")         # made.text is shown once: it is stored nowhere
    tokens.identify(made.text, peer="192.0.2.7")
    tokens.revoke(made.record.id)               # its connections are closed, also by a server in another process

A token reads `hf_KIND_ID_SECRET`. The secret has 256 random bits, so a plain SHA-256 of it is safe to store; the id is not secret.

Invariant: no secret is stored, logged or put into an error. Whether a token exists can be learned only by whoever holds its secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import msgspec

from holdfast import options
from holdfast.bridge.access.identity import TokenHolder, TokenKind
from holdfast.bridge.access.lockout import Lockout
from holdfast.bridge.access.private_files import locked, read_private, write_private
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import SystemClock
from holdfast.wire.messages import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.faults import Code

__all__ = ["KINDS", "TICKET_S", "NewToken", "RejectedToken", "TokenRecord", "Tokens"]

KINDS: Final[tuple[TokenKind, ...]] = get_args(TokenKind)
TICKET_S: Final = 30.0
"""How long a ticket stands for its token."""

_TEXT = re.compile(r"hf_(?P<kind>[a-z]{1,16})_(?P<id>[0-9a-f]{16})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)
_SECRET_BYTES = 32
_UNGUESSABLE = 32
"""Characters from which on a token of the settings is compared always. A shorter one may be somebody's password."""
_LONGEST = 4096
"""Characters of a token that are looked at."""
_MOST_TICKETS = 10_000
_MOST_TICKETS_EACH = 16
_KEPT_S = 90 * 86_400.0
"""How long a token that is revoked or has expired is kept, so that its holder learns why it fails."""
_FORMAT = "holdfast.tokens/1"
_NO_DIGEST = "0" * 64


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored about a token. It holds nothing that could be used in its place."""

    id: str
    kind: TokenKind
    name: str
    digest: str
    """SHA-256 of the secret."""
    created_at: float
    """Wall clock."""
    role: Role = "controller"
    sessions: tuple[str, ...] | None = None
    expires_at: float | None = None
    revoked_at: float | None = None

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Return whether the token may be used at a time of the wall clock."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now < self.expires_at else "expired"

    def ended_before(self, time: float) -> bool:
        """Return whether the token was revoked or had expired before a time."""
        return any(ended is not None and ended < time for ended in (self.revoked_at, self.expires_at))

    def identity(self) -> TokenHolder:
        """Return the holder."""
        sessions = None if self.sessions is None else frozenset(self.sessions)
        return TokenHolder(
            token_id=self.id,
            kind=self.kind,
            name=self.name,
            role=self.role,
            sessions=sessions,
            expires_at=self.expires_at,
        )


class NewToken(NamedTuple):
    """A token that was just made."""

    text: str
    """What its holder keeps. It cannot be shown again."""
    record: TokenRecord


class RejectedToken(NamedTuple):
    """A token or ticket that was not accepted, for the audit trail, the metrics and alerts."""

    peer: str
    code: str
    token_id: str
    """The id in it, if it had the form of a token. Whether there is such a token is not said."""
    locks: bool
    """Whether the address is locked from now on."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    tokens: list[TokenRecord]


class _Ticket(NamedTuple):
    identity: TokenHolder
    until: float


class Tokens:
    """The tokens of a bridge, as an `Authenticator`.

    path: the file that they are kept in, with mode 600; None: in memory. `holdfast tokens` changes the file, and a running server sees it.
    given: tokens from the environment or a settings file, by kind. They are kept nowhere, and cannot be revoked here.
    lockout: what slows down whoever guesses.

    A wrong option raises `InvalidError`.

        tokens = Tokens(state_folder() / "tokens.json", given={"hook": os.environ["HOOK_TOKEN"]})
    """

    @options.suggests
    def __init__(
        self,
        path: Path | None = None,
        *,
        given: Mapping[TokenKind, str] | None = None,
        lockout: Lockout | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self.lockout = Lockout() if lockout is None else lockout
        self._clock: Clock = SystemClock() if clock is None else clock
        self._given = {_digest(text): _given(kind, text) for kind, text in (given or {}).items()}
        self._records: dict[str, TokenRecord] = {}
        self._tickets: dict[str, _Ticket] = {}
        self._revoked: list[Callable[[str], None]] = []
        self._rejected: list[Callable[[RejectedToken], None]] = []
        self._seen: tuple[int, int, int] | None = None
        self.reload()

    # --- the tokens ---

    def create(
        self,
        name: str,
        *,
        kind: TokenKind = "device",
        role: Role = "controller",
        sessions: tuple[str, ...] | None = None,
        expires_in: float | None = None,
    ) -> NewToken:
        """Make a token. Its text is returned and stored nowhere; a wrong option raises `InvalidError`.

        made = tokens.create("CI", kind="hook", expires_in=86_400)
        """
        options.name("name", name)
        options.one_of("kind", kind, KINDS)
        options.one_of("role", role, get_args(Role))
        options.seconds("expires_in", expires_in, optional=True)
        now = self._clock.wall()
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        record = TokenRecord(
            id=secrets.token_hex(8),
            kind=kind,
            name=name,
            digest=_digest(secret),
            created_at=now,
            role=role,
            sessions=sessions,
            expires_at=None if expires_in is None else now + expires_in,
        )
        self._change(lambda records: {**records, record.id: record})
        return NewToken(f"hf_{kind}_{record.id}_{secret}", record)

    def all(self) -> list[TokenRecord]:
        """Return what is known about each token, oldest first, also of those that were revoked or have expired."""
        self.reload()
        return sorted(self._records.values(), key=lambda record: record.created_at)

    def revoke(self, which: str) -> TokenRecord:
        """Revoke a token by its id, or by its name if no other valid token has that name.

        Its connections are closed. Raises `InvalidError` if there is no such token, or several.
        """
        found: list[TokenRecord] = []

        def revoked(records: dict[str, TokenRecord]) -> dict[str, TokenRecord]:
            now = self._clock.wall()
            alike = [each for each in records.values() if each.name == which and each.state(now) == "valid"]
            named = [records[which]] if which in records else alike
            if len(named) != 1:
                raise InvalidError.saying("which", "the id or the name of one token", _counted(named, which))
            found.append(msgspec.structs.replace(named[0], revoked_at=named[0].revoked_at or now))
            return {**records, found[0].id: found[0]}

        self._change(revoked)
        return found[0]

    @property
    def kinds(self) -> frozenset[TokenKind]:
        """The kinds of which there is a token that may be used now."""
        now = self._clock.wall()
        found: set[TokenKind] = {identity.kind for identity in self._given.values()}
        found.update(record.kind for record in self._records.values() if record.state(now) == "valid")
        return frozenset(found)

    def reload(self) -> None:
        """Read the file again if it has changed. Tokens that were revoked since then are announced. A server calls it every second."""
        if self.path is None:
            return
        try:
            status = self.path.stat()
        except FileNotFoundError:
            # A file that was deleted takes its tokens with it.
            self._seen = None
            self._take({})
            return
        # The time of the last change is in it, so that a new mode is seen too.
        seen = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if seen != self._seen:
            self._take(_read(self.path))
            self._seen = seen

    def _refresh(self) -> None:
        """Read the file again before somebody is let in. A client does not learn what is wrong with it."""
        try:
            self.reload()
        except HoldfastError as error:
            raise HoldfastError(
                Fault.of("CONN_MISCONFIGURED", context={"reason": "it cannot read its tokens"})
            ) from error

    def _change(self, change: Callable[[dict[str, TokenRecord]], dict[str, TokenRecord]]) -> None:
        if self.path is None:
            self._take(change(self._records))
            return
        with locked(self.path):
            changed = change(_read(self.path))
            since = self._clock.wall() - _KEPT_S
            document = _File(schema=_FORMAT, tokens=[each for each in changed.values() if not each.ended_before(since)])
            write_private(self.path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        self.reload()

    def _take(self, records: dict[str, TokenRecord]) -> None:
        gone = [
            old.id
            for old in self._records.values()
            if old.revoked_at is None and (old.id not in records or records[old.id].revoked_at is not None)
        ]
        self._records = records
        for token_id in gone:
            for revoked in self._revoked:
                revoked(token_id)

    # --- who is there ---

    def identify(self, token: str, *, peer: str) -> TokenHolder:
        """Return the holder of a token.

        Raises AUTH_REQUIRED without one, AUTH_INVALID_TOKEN, AUTH_TOKEN_EXPIRED or AUTH_TOKEN_REVOKED; and CONN_RATE_LIMITED for a wrong one
        after too many. A right one is never slowed down by the wrong ones of others, unless it is so short that it could be guessed.
        """
        if not token:
            raise HoldfastError(Fault.of("AUTH_REQUIRED"))
        form = _TEXT.fullmatch(token) if len(token) <= _LONGEST else None
        token_id = form["id"] if form else ""
        self._refresh()
        # The same digests and comparisons are made whatever is known of the token: the time tells nothing.
        record = self._records.get(token_id)
        whole, secret = _digest(token), _digest(form["secret"] if form else token)
        is_stored = hmac.compare_digest(secret, _NO_DIGEST if record is None else record.digest)
        given = [identity for digest, identity in self._given.items() if hmac.compare_digest(whole, digest)]
        if record is not None and form is not None and is_stored and form["kind"] == record.kind:
            return self._current(record, peer)
        if not given or len(token.strip()) < _UNGUESSABLE:
            self.admit(peer, token_id)
        if not given:
            raise self._wrong(peer, token_id)
        self.lockout.right(peer, given[0].token_id)
        return given[0]

    def make_ticket(self, identity: TokenHolder) -> str:
        """Return a ticket that stands for the token once, and for half a minute: a browser may show it where a token must not be."""
        now = self._clock.monotonic()
        self._tickets = {key: each for key, each in self._tickets.items() if each.until > now}
        own = [key for key, each in self._tickets.items() if each.identity.token_id == identity.token_id]
        if len(own) >= _MOST_TICKETS_EACH:
            del self._tickets[own[0]]
        elif len(self._tickets) >= _MOST_TICKETS:
            raise HoldfastError(Fault.of("CONN_RATE_LIMITED", "Too many tickets wait to be used", retry_after=TICKET_S))
        ticket = f"hf_ticket_{secrets.token_urlsafe(_SECRET_BYTES)}"
        self._tickets[_digest(ticket)] = _Ticket(identity, now + TICKET_S)
        return ticket

    def redeem(self, ticket: str, *, peer: str) -> TokenHolder:
        """Return the holder of a ticket, once. Raises as `identify` does, also if the token was revoked in between."""
        if not ticket:
            raise HoldfastError(Fault.of("AUTH_REQUIRED"))
        found = self._tickets.pop(_digest(ticket[:_LONGEST]), None)
        if found is None:
            self.admit(peer)
            raise self._wrong(peer, "")
        if found.until <= self._clock.monotonic():
            raise self._rejection("AUTH_TOKEN_EXPIRED", peer, found.identity.token_id, "The ticket has expired")
        return self.check(found.identity, peer=peer)

    def check(self, identity: TokenHolder, *, peer: str = "") -> TokenHolder:
        """Return the holder as it is now. Raises AUTH_TOKEN_EXPIRED or AUTH_TOKEN_REVOKED if the token no longer holds."""
        if identity in self._given.values():
            return identity
        self._refresh()
        record = self._records.get(identity.token_id)
        if record is None:
            raise self._rejection("AUTH_TOKEN_REVOKED", peer, identity.token_id)
        return self._current(record, peer)

    def _current(self, record: TokenRecord, peer: str) -> TokenHolder:
        match record.state(self._clock.wall()):
            case "revoked":
                raise self._rejection("AUTH_TOKEN_REVOKED", peer, record.id)
            case "expired":
                raise self._rejection("AUTH_TOKEN_EXPIRED", peer, record.id)
            case _:
                self.lockout.right(peer, record.id)
                return record.identity()

    # --- who is told ---

    def watch(self, revoked: Callable[[str], None]) -> None:
        """Call `revoked` with the id of each token that is revoked from now on, so that its connections are closed."""
        self._revoked.append(revoked)

    def watch_rejected(self, rejected: Callable[[RejectedToken], None]) -> None:
        """Call `rejected` for each token that is not accepted from now on."""
        self._rejected.append(rejected)

    def admit(self, peer: str, token_id: str = "") -> None:
        """Raise CONN_RATE_LIMITED if an address has to wait after too many wrong tokens. Other secrets, such as codes, ask it too."""
        wait = self.lockout.wait(peer, token_id, self._clock.monotonic())
        if wait > 0:
            self._report(RejectedToken(peer, "CONN_RATE_LIMITED", token_id, locks=False))
            message = "Too many wrong tokens came from this address"
            raise HoldfastError(Fault.of("CONN_RATE_LIMITED", message, retry_after=wait))

    def count_wrong(self, peer: str, token_id: str = "") -> None:
        """Count a wrong token, ticket or code, and report it."""
        locks = self.lockout.wrong(peer, token_id, self._clock.monotonic())
        self._report(RejectedToken(peer, "AUTH_INVALID_TOKEN", token_id, locks))

    def _wrong(self, peer: str, token_id: str) -> HoldfastError:
        self.count_wrong(peer, token_id)
        return HoldfastError(Fault.of("AUTH_INVALID_TOKEN"))

    def _rejection(self, code: Code, peer: str, token_id: str, message: str | None = None) -> HoldfastError:
        self._report(RejectedToken(peer, code, token_id, locks=False))
        return HoldfastError(Fault.of(code, message))

    def _report(self, rejected: RejectedToken) -> None:
        for each in self._rejected:
            each(rejected)


def _given(kind: TokenKind, text: str) -> TokenHolder:
    if not text.strip():
        raise InvalidError.saying(f"given.{kind}", "a token", "an empty text")
    return TokenHolder(token_id=f"given-{kind}", kind=kind, name=f"{kind} token of the settings")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, TokenRecord]:
    content = read_private(path)
    if content is None:
        return {}
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.DecodeError as error:
        file = None
        cause: Exception | None = error
    else:
        cause = None
    if file is None or file.schema != _FORMAT:
        # Without this, a damaged file would read as "no tokens", and the next change would delete them all.
        message = f"{path} does not hold tokens of this version: restore it, or move it away and make new tokens"
        raise HoldfastError(Fault.of("CONFIG_INVALID", message, context={"path": str(path)})) from cause
    return {record.id: record for record in file.tokens}


def _counted(named: list[TokenRecord], which: str) -> str:
    listed = ", ".join(f"{each.id} ({each.kind})" for each in named)
    return f"{which!r}, which names {f'{len(named)}: {listed}' if named else 'none'}"
