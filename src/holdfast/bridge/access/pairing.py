"""Pairing: a one-time code becomes a token of a new device. The code is shown as a QR code, the token never is.

    pairing = Pairing(tokens)                                   # keeps its codes beside the tokens
    offer = pairing.offer(role="observer")                      # `holdfast pair`, in a terminal
    link = pair_link("https://192.168.1.5:3000", offer.code, pins)
    made = pairing.redeem(offer.code, "Ada's phone", peer=peer) # the server, when the phone sends the code

Invariant: a code works once and for a few minutes, and is stored as a digest. Wrong codes count as wrong tokens do.
"""

from __future__ import annotations

import hashlib
import io
import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from holdfast import options
from holdfast.bridge.access.private_files import locked, read_private, write_private
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import SystemClock
from holdfast.wire.messages import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.bridge.access.tokens import NewToken, Tokens
    from holdfast.clock import Clock

__all__ = ["CODE_S", "Offer", "PairLink", "Pairing", "pair_link", "qr_code", "read_pair_link"]

CODE_S: Final = 300.0
"""How long a code can be used."""

_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ0123456789"
"""Letters and digits that a person cannot mix up, for a code that is typed: no I, L, O, U."""
_CODE = re.compile(r"[A-HJKMNP-TV-Z0-9]{16}", re.ASCII)
_LONGEST_NAME = 100
_MOST = 100
_FORMAT = "holdfast.pairings/1"


class Offer(NamedTuple):
    """A code that waits for a device."""

    code: str
    """Sixteen characters (80 bits) in groups of four."""
    expires_at: float
    """Wall clock."""


class _Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    digest: str
    expires_at: float
    role: Role = "controller"
    sessions: tuple[str, ...] | None = None
    token_expires_in: float | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    waiting: list[_Waiting]


class PairLink(NamedTuple):
    """What a device reads from a QR code."""

    url: str
    code: str
    pins: tuple[str, ...]


class Pairing:
    """The codes that wait for a device. They are kept in a file beside that of the tokens, or in memory as the tokens are.

    `holdfast pair` makes a code, and a running server in another process redeems it.
    """

    def __init__(self, tokens: Tokens, *, clock: Clock | None = None) -> None:
        self._tokens = tokens
        self._clock: Clock = SystemClock() if clock is None else clock
        self._path = None if tokens.path is None else tokens.path.with_name("pairings.json")
        self._memory: list[_Waiting] = []

    def offer(
        self,
        *,
        role: Role = "controller",
        sessions: tuple[str, ...] | None = None,
        lifetime: float = CODE_S,
        token_expires_in: float | None = None,
    ) -> Offer:
        """Make a code. The device that redeems it gets a token with this role, for these sessions."""
        options.one_of("role", role, ("controller", "observer"))
        options.seconds("lifetime", lifetime)
        options.seconds("token_expires_in", token_expires_in, optional=True)
        plain = "".join(secrets.choice(_ALPHABET) for _ in range(16))
        now = self._clock.wall()
        waiting = _Waiting(
            digest=_digest(plain),
            expires_at=now + lifetime,
            role=role,
            sessions=sessions,
            token_expires_in=token_expires_in,
        )
        self._change(lambda known: [*known, waiting][-_MOST:])
        return Offer("-".join(plain[start : start + 4] for start in range(0, 16, 4)), waiting.expires_at)

    def is_waiting(self, code: str) -> bool:
        """Return whether a code can still be used."""
        digest = _digest(_plain(code))
        return any(each.digest == digest and self._clock.wall() < each.expires_at for each in self._read())

    def redeem(self, code: str, name: str, *, peer: str) -> NewToken:
        """Return a new device token for a code, once. Raises AUTH_INVALID_TOKEN for a wrong, used or expired code; after too many wrong ones CONN_RATE_LIMITED."""
        self._tokens.admit(peer)
        options.name("name", name)
        digest, found = _digest(_plain(code)), list[_Waiting]()

        def without(known: list[_Waiting]) -> list[_Waiting]:
            # Digests are compared, not codes: the time that it takes tells nothing about a code.
            found.extend(each for each in known if each.digest == digest)
            return [each for each in known if each.digest != digest]

        self._change(without)
        if not found or self._clock.wall() >= found[0].expires_at:
            self._tokens.count_wrong(peer)
            message = "The pairing code is wrong, was used before, or has expired: make a new one with `holdfast pair`"
            raise HoldfastError(Fault.of("AUTH_INVALID_TOKEN", message))
        offered = found[0]
        return self._tokens.create(
            name.strip()[:_LONGEST_NAME],
            role=offered.role,
            sessions=offered.sessions,
            expires_in=offered.token_expires_in,
        )

    def _change(self, change: Callable[[list[_Waiting]], list[_Waiting]]) -> None:
        if self._path is None:
            self._memory = change(self._read())
            return
        with locked(self._path):
            before = self._read()
            after = change(before)
            if after != before:
                write_private(self._path, msgspec.json.encode(_File(schema=_FORMAT, waiting=after)))

    def _read(self) -> list[_Waiting]:
        now = self._clock.wall()
        return [each for each in self._stored() if now < each.expires_at]

    def _stored(self) -> list[_Waiting]:
        content = None if self._path is None else read_private(self._path)
        if content is None:
            return self._memory
        try:
            return msgspec.json.decode(content, type=_File).waiting
        except msgspec.DecodeError:
            # Nothing is lost with them but a few minutes: whoever waits makes a new code.
            return []


def pair_link(url: str, code: str, pins: Iterable[str] = ()) -> str:
    """Return the link for a QR code. It opens the bridge's page; what follows `#` is never sent to a server or a proxy.

    >>> pair_link("https://192.168.1.5:3000", "ABCD-EFGH-JKMN-PQRS", ["sha256/aGk="])
    'https://192.168.1.5:3000/#pair=ABCD-EFGH-JKMN-PQRS&pin=sha256%2FaGk%3D'
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
        raise InvalidError.at("url", "the address of a bridge, such as https://192.168.1.5:3000", url)
    return "&".join(
        [f"{url.rstrip('/')}/#pair={quote(code, safe='')}", *(f"pin={quote(pin, safe='')}" for pin in pins)]
    )


def read_pair_link(link: str) -> PairLink:
    """Return what is in a link of `pair_link`. Raises `InvalidError` for another text."""
    parts = urlsplit(link)
    fields = parse_qs(parts.fragment)
    code = fields.get("pair", [""])[0]
    if parts.scheme not in {"http", "https"} or not _CODE.fullmatch(_plain(code)):
        raise InvalidError.saying("link", "the link of `holdfast pair`, with #pair=CODE", "another text")
    return PairLink(f"{parts.scheme}://{parts.netloc}", code, tuple(fields.get("pin", ())))


def qr_code(text: str) -> str:
    """Return a QR code for a terminal, two lines of the code in each line of text. Raises SYS_DEPENDENCY_MISSING without segno."""
    with needs_extra("A QR code", "segno", "server"):
        import segno  # noqa: PLC0415 - only `holdfast pair` needs it

    out = io.StringIO()
    segno.make(text, micro=False, error="l").terminal(out, compact=True, border=2)
    return out.getvalue()


def _plain(code: str) -> str:
    """Return a code as it was made, also if it was typed in lower case, with spaces, or with O for 0."""
    letters = re.sub(r"[\s-]", "", code[:64]).upper()
    return letters.translate(str.maketrans("OIL", "011"))


def _digest(code: str) -> str:
    return hashlib.sha256(f"pair {code}".encode("utf-8", "surrogatepass")).hexdigest()
