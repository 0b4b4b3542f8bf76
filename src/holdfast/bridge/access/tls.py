"""Certificates of a bridge: made by itself, exchanged while it runs, and pinned by its clients.

    files = TlsFiles(state_folder() / "tls")
    files.create(["bridge.local", "192.168.1.5"])
    files.pins()                                 # the key in use, and the one that comes next
    server = ServerTls(files.cert, files.key)    # server.context for the listener; server.reload() takes new files
    files.rotate()                               # the next key comes into use; clients that know both pins notice nothing

A pin is `sha256/` and the base64 of the SHA-256 of the public key (SPKI). It is the key's, not the certificate's, so it holds when a
certificate is renewed with the same key.

Invariant: a private key is in a file that only its owner may read. A running server never has a certificate without its key.
"""

from __future__ import annotations

import ipaddress
import ssl
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast import options
from holdfast.bridge.access.private_files import locked, read_private, write_private
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError, InvalidError

with needs_extra("TLS of the bridge", "cryptography", "server"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

    from holdfast.clock import Clock

__all__ = [
    "CertificateFacts",
    "Rotation",
    "RotationWatch",
    "ServerTls",
    "TlsFiles",
    "facts_of",
    "pin_of",
    "pin_of_file",
]

_KEY_BITS = 2048
_DAYS = 365
_RENEW_BEFORE = timedelta(days=30)
_ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Every certificate holds for these too, so that the machine itself can connect."""


def pin_of(certificate: bytes) -> str:
    """Return the pin of the public key in a certificate, which is DER as `SSLSocket.getpeercert(True)` gives it, or PEM."""
    parsed = _parsed(certificate)
    return _pin(parsed.public_key())


def pin_of_file(path: Path) -> str:
    """Return the pin of the first certificate in a PEM file. A client with this pin trusts only its key.

    For example:
        Client("wss://bridge.example", token=token, pins=[pin_of_file(Path("bridge.pem"))])
    """
    return pin_of(path.read_bytes())


class CertificateFacts(NamedTuple):
    """What a person wants to know about a certificate."""

    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    pin: str
    is_self_signed: bool

    def problems(self, now: datetime, names: Iterable[str] = ()) -> list[str]:
        """Return what a client would complain about, in the order in which to look: the time first, then the names.

        names: the host names that clients use.
        """
        found: list[str] = []
        if now >= self.not_after:
            found.append(f"it expired on {self.not_after:%Y-%m-%d}: run `holdfast tls rotate`")
        elif now >= self.not_after - _RENEW_BEFORE:
            found.append(f"it expires on {self.not_after:%Y-%m-%d}: run `holdfast tls rotate` before that")
        if now < self.not_before:
            found.append(f"it is not valid before {self.not_before:%Y-%m-%d}: check the clock of this machine")
        missing = [name for name in names if name not in self.names]
        if missing:
            found.append(
                f"it does not name {', '.join(missing)}, only {', '.join(self.names)}: make one with these names"
            )
        return found


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """A rotation that a running bridge makes at its time. Clients that are connected are told before."""

    at: float
    """Wall clock."""
    pin: str
    """The pin of the key that comes into use."""
    names: tuple[str, ...]
    days: int


class TlsFiles:
    """The certificate of a bridge, its key, and the key that comes next, in a folder.

    The next key exists from the beginning, so that its pin is a backup that clients know before it is used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cert = folder / "cert.pem"
        self.key = folder / "key.pem"
        self.next_key = folder / "next-key.pem"
        self.rotation = folder / "rotation.json"

    def create(self, names: Sequence[str] = (), *, days: int = _DAYS, now: datetime | None = None) -> CertificateFacts:
        """Make a self-signed certificate for these names and addresses, and for loopback.

        Raises `InvalidError` if there is one already: replacing its key would lock out every client that has pinned it.
        """
        options.count("days", days)
        with locked(self.cert):
            if self.cert.exists() or self.key.exists():
                raise InvalidError.saying(
                    "tls", f"no certificate in {self.folder}", "one: `holdfast tls rotate` renews it"
                )
            write_private(self.next_key, _new_key())
            self._write(_new_key(), names, days, now)
        return self.facts()

    def rotate(
        self, names: Sequence[str] | None = None, *, days: int = _DAYS, now: datetime | None = None
    ) -> CertificateFacts:
        """Bring the next key into use with a new certificate, and make another next key. A running server takes it by itself.

        names: None keeps those of the present certificate.
        """
        options.count("days", days)
        with locked(self.cert):
            kept = self.facts().names if names is None else names
            key = read_private(self.next_key) or _new_key()
            self._write(key, kept, days, now)
            write_private(self.next_key, _new_key())
            self.rotation.unlink(missing_ok=True)
        return self.facts()

    def schedule(self, at: float, names: Sequence[str] | None = None, *, days: int = _DAYS) -> Rotation:
        """Have a running bridge rotate at a time of the wall clock. A second call replaces the first, and `rotate` cancels it."""
        options.count("days", days)
        with locked(self.cert):
            kept = self.facts().names if names is None else names
            for name in kept:
                _general(name)
            _, *following = self.pins()
            if not following:
                write_private(self.next_key, _new_key())
            rotation = Rotation(at=at, pin=self.pins()[1], names=tuple(kept), days=days)
            write_private(self.rotation, msgspec.json.encode(rotation))
        return rotation

    def scheduled(self) -> Rotation | None:
        """Return the rotation that waits for its time."""
        content = read_private(self.rotation)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=Rotation)
        except msgspec.DecodeError:
            raise InvalidError.saying(
                "tls", f"a rotation in {self.rotation}", "something else: schedule it again"
            ) from None

    def _write(self, key: bytes, names: Sequence[str], days: int, now: datetime | None) -> None:
        certificate = _self_signed(key, _unique([*_ALWAYS, *names]), days, now or datetime.now(UTC))
        # A server that reads between the two writes sees a pair that does not fit, and keeps the old one.
        write_private(self.key, key)
        write_private(self.cert, certificate)

    def facts(self) -> CertificateFacts:
        """Return what the certificate says. Raises `InvalidError` if there is none, or if it cannot be read."""
        return facts_of(self.cert)

    def pins(self) -> list[str]:
        """Return the pins for clients: of the key in use, and of the next one."""
        found = [self.facts().pin]
        following = read_private(self.next_key)
        if following is not None:
            found.append(_pin(_private(following).public_key()))
        return found


def facts_of(path: Path) -> CertificateFacts:
    """Return what the first certificate in a PEM file says."""
    try:
        parsed = _parsed(path.read_bytes())
    except FileNotFoundError:
        raise InvalidError.saying(
            "tls", f"a certificate in {path}", "nothing: `holdfast tls create` makes one"
        ) from None
    return CertificateFacts(
        names=_names(parsed),
        not_before=parsed.not_valid_before_utc,
        not_after=parsed.not_valid_after_utc,
        pin=_pin(parsed.public_key()),
        is_self_signed=parsed.issuer == parsed.subject,
    )


class RotationWatch:
    """Announces a scheduled rotation when it is seen, and makes it when its time has come. `FileWatch` lets it look.

    announce: gets the rotation, or None when it was made or cancelled.
    """

    def __init__(self, files: TlsFiles, announce: Callable[[Rotation | None], object], clock: Clock) -> None:
        self._files, self._announce, self._clock = files, announce, clock
        self._known: Rotation | None = None

    def reload(self) -> None:
        """Look at the schedule, and do what is due."""
        rotation = self._files.scheduled()
        if rotation is not None and self._clock.wall() >= rotation.at:
            self._files.rotate(rotation.names, days=rotation.days)
            rotation = None
        if rotation != self._known:
            self._known = rotation
            self._announce(rotation)


class ServerTls:
    """The TLS of a running server. New connections use what was loaded last; open ones keep what they have.

    context: for the listener. It stays the same object when the certificate changes.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._paths = (cert, key)
        self._loaded = self._versions()
        self._current = self._load()
        self.context = _new_context()
        # The listener needs a certificate of its own before a client has said which name it wants.
        self.context.load_cert_chain(*self._paths)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        # A context is exchanged as a whole. Loading a new pair into one in use could leave a certificate without its key.
        connection.context = self._current

    def reload(self) -> bool:
        """Take the files again if they have changed, and return whether they had. A server calls it every few seconds.

        A pair that does not fit, or cannot be read, raises CONFIG_INVALID; the old one stays in use, and the next call tries again.
        """
        versions = self._versions()
        if versions == self._loaded:
            return False
        self._current = self._load()
        self._loaded = versions
        return True

    def pins(self) -> list[str]:
        """Return the pin of the certificate in use."""
        return [pin_of_file(self._paths[0])]

    def _load(self) -> ssl.SSLContext:
        cert, key = self._paths
        context = _new_context()
        try:
            read_private(key)  # refuses a key that others may read
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            message = f"The certificate {cert} and the key {key} cannot be used together: {error.strerror or error}"
            raise HoldfastError(Fault.of("CONFIG_INVALID", message, context={"path": str(cert)})) from error
        return context

    def _versions(self) -> list[tuple[int, int, int] | None]:
        return [_version(path) for path in self._paths]


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _new_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _self_signed(key_pem: bytes, names: Sequence[str], days: int, now: datetime) -> bytes:
    key = _private(key_pem)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Holdfast bridge")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=True,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of phones differ a little from ours.
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        # Safari trusts a certificate by itself only if it is one of an authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    # Not an address, so it is a name.
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode())
    except UnicodeError:
        raise InvalidError.at("tls.names", "host names and addresses", name) from None


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(each.value) for each in extension.value)


def _parsed(certificate: bytes) -> x509.Certificate:
    try:
        if certificate.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(certificate)
        return x509.load_der_x509_certificate(certificate)
    except ValueError:
        raise InvalidError.saying("tls", "a certificate as PEM or DER", "something else") from None


def _private(pem: bytes) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InvalidError.saying("tls", "an RSA key made by `holdfast tls create`", type(key).__name__)
    return key


def _pin(key: PublicKeyTypes) -> str:
    info = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"sha256/{b64encode(sha256(info).digest()).decode()}"


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.strip("[]").lower() for name in names))
