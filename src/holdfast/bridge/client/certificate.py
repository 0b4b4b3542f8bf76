"""Which certificates of a server are accepted, and why one is not.

    sha256/8nT…=         a pin: the hash of the server's public key

Without pins the usual rules hold: a known authority, the right name, in date. With pins the key must be one of them in addition. A
certificate that is signed by itself has no authority; then the pin alone says who the server is, and it must be in date.

Invariant: nothing is sent before the certificate is accepted, and a server that is not accepted is never tried with weaker rules.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from holdfast.bridge.access.tls import pin_of
from holdfast.extras import needs_extra
from holdfast.faults import Fault, InvalidError

with needs_extra("The certificate check of the bridge's client", "cryptography", "server"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = [
    "Certificate",
    "CertificateRejected",
    "Reason",
    "contexts",
    "diagnose",
    "pins_of",
    "read_certificate",
    "rejection",
    "unknown_issuer",
]

Reason: TypeAlias = Literal[
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_NOT_YET_VALID",
    "CHAIN_INCOMPLETE",
    "HOSTNAME_MISMATCH",
    "SELF_SIGNED",
    "PIN_MISMATCH",
    "HANDSHAKE_FAILED",
]

_ACTIONS: dict[Reason, str] = {
    "CERTIFICATE_EXPIRED": "regenerate_certificates",
    "CERTIFICATE_NOT_YET_VALID": "check_clock",
    "CHAIN_INCOMPLETE": "install_certificate_chain",
    "HOSTNAME_MISMATCH": "connect_to_certificate_name",
    "SELF_SIGNED": "confirm_pin",
    "PIN_MISMATCH": "confirm_pin",
    "HANDSHAKE_FAILED": "check_tls_versions",
}
_PIN = re.compile(r"sha256/[A-Za-z0-9+/]{43}=")
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 27})
"""OpenSSL's codes for a certificate that leads to no authority that is known here."""


class Certificate(NamedTuple):
    """What is known about a server's certificate."""

    pin: str
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...]
    """The hosts that it is for: names, names with a wildcard, and addresses."""
    is_self_signed: bool

    def is_for(self, host: str) -> bool:
        """Return whether a host is among its names. A wildcard stands for one label: `*.example.com`."""
        wanted, rest = host.lower().rstrip("."), host.lower().rstrip(".").partition(".")[2]
        names = {name.lower() for name in self.names}
        return wanted in names or (bool(rest) and f"*.{rest}" in names)


class CertificateRejected(ssl.SSLCertVerificationError):
    """A certificate that our own rules reject. OpenSSL had nothing against it, or was not asked."""

    def __init__(self, certificate: Certificate, reason: Reason) -> None:
        super().__init__(1, f"the certificate is not accepted: {reason}")
        self.certificate = certificate
        self.why: Reason = reason


def pins_of(pins: Iterable[str]) -> frozenset[str]:
    """Return the pins. Raises `InvalidError` for text that is none."""
    found = [pins] if isinstance(pins, str) else list(pins)
    for pin in found:
        if _PIN.fullmatch(pin) is None:
            raise InvalidError.at(
                "pins", "sha256/ and the hash of a public key in base64, as `holdfast tls` prints it", pin
            )
    return frozenset(found)


def read_certificate(der: bytes) -> Certificate:
    """Return what is known about a certificate."""
    found = x509.load_der_x509_certificate(der)
    try:
        found.verify_directly_issued_by(found)
        is_self_signed = True
    except (ValueError, TypeError, InvalidSignature):
        is_self_signed = False
    try:
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = (*listed.get_values_for_type(x509.DNSName), *map(str, listed.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        names = ()
    return Certificate(pin_of(der), found.not_valid_before_utc, found.not_valid_after_utc, names, is_self_signed)


def diagnose(certificate: Certificate, *, host: str, now: datetime, verify_code: int, pins: Collection[str]) -> Reason:
    """Return why a certificate is not accepted: first its dates, then its chain, then its names, then its pin.

    `verify_code` is what OpenSSL says. It stops at the first thing that it finds, which is often not the one to repair first.
    """
    if now > certificate.not_after:
        return "CERTIFICATE_EXPIRED"
    if now < certificate.not_before:
        return "CERTIFICATE_NOT_YET_VALID"
    if certificate.is_self_signed and pins:
        # With the right pin the names do not matter, so they are not what is wrong.
        return "PIN_MISMATCH"
    if not certificate.is_self_signed and verify_code in _UNKNOWN_ISSUER:
        return "CHAIN_INCOMPLETE"
    if not certificate.is_for(host):
        return "HOSTNAME_MISMATCH"
    if certificate.is_self_signed:
        return "SELF_SIGNED"
    return "PIN_MISMATCH" if pins and certificate.pin not in pins else "HANDSHAKE_FAILED"


def rejection(
    certificate: Certificate | None, reason: Reason, *, host: str, detail: str = "", pins: Collection[str] = ()
) -> Fault:
    """Return the fault for a certificate that is not accepted: what is wrong, and what to do."""
    context: dict[str, Any] = {"reason": reason}
    if certificate is not None:
        if reason == "CERTIFICATE_EXPIRED":
            context["expiry"] = certificate.not_after.strftime("%Y-%m-%dT%H:%M:%SZ")
        if reason == "HOSTNAME_MISMATCH":
            context |= {"expected": host, "received": ", ".join(certificate.names) or "no names"}
        if reason in ("PIN_MISMATCH", "SELF_SIGNED"):
            context["received"] = certificate.pin
    if detail:
        context["detail"] = detail
    context["suggested_action"] = _ACTIONS[reason]
    message = _message(certificate, reason, host, detail, pins)
    return Fault.of("CONN_TLS_HANDSHAKE_FAILED", f"{reason}: {message}", context=context)


def _message(certificate: Certificate | None, reason: Reason, host: str, detail: str, pins: Collection[str]) -> str:
    """Return what is wrong with a certificate, for a person."""
    if certificate is None or reason == "HANDSHAKE_FAILED":
        return f"the TLS handshake with {host} failed ({detail or 'the server does not say why'})"
    match reason:
        case "SELF_SIGNED":
            text = f"the certificate of {host} is signed by itself, and no pin was given. Its key has the pin {certificate.pin}; give it as a pin"
            return f"{text} if `holdfast tls show` on the bridge's machine prints the same"
        case "PIN_MISMATCH":
            text = f"the certificate of {host} has another key: expected {' or '.join(sorted(pins))}, received {certificate.pin}"
            return f"{text}. `holdfast tls show` on the bridge's machine prints the right one"
        case "HOSTNAME_MISMATCH":
            return f"the certificate is not for {host}: it is for {', '.join(certificate.names) or 'no names'}. Its key has the pin {certificate.pin}"
        case "CHAIN_INCOMPLETE":
            return f"no authority that is known here has signed the certificate of {host}; --ca or ca= takes others"
        case "CERTIFICATE_NOT_YET_VALID":
            return f"the certificate of {host} is valid from {certificate.not_before:%Y-%m-%d %H:%M} UTC; look at the clocks"
        case _:
            return f"the certificate of {host} has expired at {certificate.not_after:%Y-%m-%d %H:%M} UTC"


def unknown_issuer(error: ssl.SSLCertVerificationError) -> bool:
    """Return whether OpenSSL rejects a certificate because no authority that is known here has signed it."""
    return error.verify_code in _UNKNOWN_ISSUER


class _Checked(ssl.SSLObject):
    """A TLS connection whose certificate is also checked by our own rules, before anything is sent."""

    def do_handshake(self) -> None:
        super().do_handshake()
        context = self.context
        assert isinstance(context, _CheckedContext)
        context.accept(self.getpeercert(binary_form=True) or b"")


class _CheckedContext(ssl.SSLContext):
    sslobject_class = _Checked
    accept: Callable[[bytes], None]


def contexts(
    host: str, pins: frozenset[str], ca: str | None, first: Callable[[str], None] | None = None
) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
    """Return the rules for a server with a certificate of an authority, and those for one that signs its own; None: not accepted.

    first: takes the pin of a certificate that signs itself, where no pin is known yet. None: such a certificate is not accepted.
    """
    by_authority = ssl.create_default_context(cafile=ca)
    by_authority.minimum_version = ssl.TLSVersion.TLSv1_2
    if not pins:
        return by_authority, None if first is None else _self_signed(lambda der: _accept_first(der, host, first))
    checked = _CheckedContext(ssl.PROTOCOL_TLS_CLIENT)
    checked.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        checked.load_default_certs()
    else:
        checked.load_verify_locations(ca)
    checked.accept = lambda der: _accept_pinned(der, pins)
    return checked, _self_signed(lambda der: _accept_self_signed(der, host, pins))


def _self_signed(accept: Callable[[bytes], None]) -> ssl.SSLContext:
    context = _CheckedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    # OpenSSL knows no authority here. `accept` decides, before anything is sent.
    context.verify_mode = ssl.CERT_NONE
    context.accept = accept
    return context


def _accept_first(der: bytes, host: str, first: Callable[[str], None]) -> None:
    """Accept a certificate that signs itself because it is the first one of this server, and remember its key."""
    _accept_self_signed(der, host, frozenset({read_certificate(der).pin}))
    first(read_certificate(der).pin)


def _accept_pinned(der: bytes, pins: frozenset[str]) -> None:
    certificate = read_certificate(der)
    if certificate.pin not in pins:
        raise CertificateRejected(certificate, "PIN_MISMATCH")


def _accept_self_signed(der: bytes, host: str, pins: frozenset[str]) -> None:
    certificate = read_certificate(der)
    now = datetime.now(UTC)
    # Only a certificate that signs itself is excused from having an authority.
    is_known = certificate.is_self_signed and certificate.pin in pins
    if not is_known or not certificate.not_before <= now <= certificate.not_after:
        code = 18 if certificate.is_self_signed else 20
        reason = diagnose(certificate, host=host, now=now, verify_code=code, pins=pins)
        raise CertificateRejected(certificate, reason)
