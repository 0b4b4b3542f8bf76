"""Which certificates the client accepts, over real TLS handshakes, and what it says about the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bridge_kit import LIMIT, serving
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast import InvalidError
from holdfast.bridge import BridgeConnectionError, Client, ConnectionStatus
from holdfast.bridge.access.tls import TlsFiles, pin_of
from holdfast.bridge.client.certificate import Certificate, diagnose
from holdfast.bridge.settings import BridgeSettings
from holdfast.views import wire

DAY = timedelta(days=1)
OTHER = "sha256/" + "A" * 43 + "="


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A certificate authority of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        self.file = folder / "ca.pem"
        made = (
            self._builder(self.name, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
        )
        self.file.write_bytes(made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, age: timedelta = DAY, left: timedelta = DAY
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - age)
            .not_valid_after(now + left)
        )

    def server(
        self, host: str = "localhost", *, age: timedelta = DAY, left: timedelta = DAY
    ) -> tuple[BridgeSettings, str]:
        """Return the settings of a server with a certificate for a host, and the pin of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key, age, left)
        # Python 3.13 and later check this strictly: a certificate names the key of its authority.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        made = builder.add_extension(names, critical=False).add_extension(authority, critical=False)
        signed = made.sign(self.key, hashes.SHA256())
        cert, file = self.folder / f"{signed.serial_number}.pem", self.folder / f"{signed.serial_number}.key"
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        kind = serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
        file.chmod(0o600)
        return BridgeSettings(tls_cert=cert, tls_key=file), pin_of(signed.public_bytes(serialization.Encoding.DER))


def self_signed(folder: Path, **options: Any) -> tuple[BridgeSettings, TlsFiles]:
    files = TlsFiles(folder / "tls")
    files.create(**options)
    return BridgeSettings(tls_cert=files.cert, tls_key=files.key), files


async def attempt(tls: BridgeSettings, **options: Any) -> str:
    """Connect; return "connected", or the reason why not."""
    seen: list[ConnectionStatus] = []
    async with serving(limits=tls) as bridge:
        url = bridge.ws_url.replace("127.0.0.1", "localhost")
        try:
            async with Client(url, token="token", on_status=seen.append, **options) as client, client.create("s"):
                return "connected"
        except BridgeConnectionError as error:
            fault = error.fault
        assert fault.code == "CONN_TLS_HANDSHAKE_FAILED"
        # It is never tried again, and never with weaker rules.
        assert [now.status for now in seen] == ["connecting", "error", "disconnected"]
        assert bridge.hub.connections == set()
        # Whoever reads only the message learns the same, and which key the server has.
        assert fault.message.startswith(f"{fault.context['reason']}: ")
        assert str(fault.context.get("received", "")) in fault.message
        assert all(pin in fault.message for pin in options.get("pins", ()) if fault.context["reason"] == "PIN_MISMATCH")
        return str(fault.context["reason"])


def test_a_certificate_of_a_known_authority_is_accepted_and_of_an_unknown_one_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        authority = Authority(tmp_path)
        tls, _ = authority.server()
        assert await attempt(tls, ca=str(authority.file)) == "connected"
        assert await attempt(tls) == "CHAIN_INCOMPLETE"

    run(work)


def test_B89_with_pins_the_key_counts_in_addition_to_the_authority(tmp_path: Path) -> None:
    async def work() -> None:
        authority = Authority(tmp_path)
        tls, pin = authority.server()
        ca = str(authority.file)
        assert await attempt(tls, ca=ca, pins=[pin]) == "connected"
        assert await attempt(tls, ca=ca, pins=[OTHER, pin]) == "connected"
        # The right authority, another key.
        assert await attempt(tls, ca=ca, pins=[OTHER]) == "PIN_MISMATCH"
        # The right key does not excuse an authority that nobody knows.
        assert await attempt(tls, pins=[pin]) == "CHAIN_INCOMPLETE"

    run(work)


def test_B89_a_certificate_that_signs_itself_needs_its_pin_or_the_backup(tmp_path: Path) -> None:
    async def work() -> None:
        tls, files = self_signed(tmp_path)
        now, following = files.pins()
        assert await attempt(tls, pins=[now, following]) == "connected"
        assert await attempt(tls, pins=[OTHER, now]) == "connected"
        assert await attempt(tls, pins=[OTHER]) == "PIN_MISMATCH"
        assert await attempt(tls) == "SELF_SIGNED"
        # The server has changed its key as announced: clients that have both pins notice nothing.
        files.rotate()
        assert await attempt(tls, pins=[now, following]) == "connected"

    run(work)


def test_S0_10_an_expired_certificate_is_named_first_whatever_else_is_wrong(tmp_path: Path) -> None:
    async def work() -> None:
        authority = Authority(tmp_path)
        expired, pin = authority.server("other.example", age=3 * DAY, left=-DAY)
        # Also the wrong host, and an authority that nobody knows.
        assert await attempt(expired) == "CERTIFICATE_EXPIRED"
        assert await attempt(expired, ca=str(authority.file), pins=[pin]) == "CERTIFICATE_EXPIRED"
        early, _ = authority.server(age=-DAY, left=3 * DAY)
        assert await attempt(early, ca=str(authority.file)) == "CERTIFICATE_NOT_YET_VALID"
        # The pin of a certificate that signs itself does not excuse its date.
        old, files = self_signed(tmp_path, days=1, now=datetime.now(UTC) - 9 * DAY)
        assert await attempt(old, pins=files.pins()) == "CERTIFICATE_EXPIRED"

    run(work)


def test_S0_10_a_wrong_host_is_named(tmp_path: Path) -> None:
    async def work() -> None:
        authority = Authority(tmp_path)
        tls, pin = authority.server("other.example")
        assert await attempt(tls, ca=str(authority.file)) == "HOSTNAME_MISMATCH"
        # A pin does not excuse the wrong name of a certificate that an authority has signed.
        assert await attempt(tls, ca=str(authority.file), pins=[pin]) == "HOSTNAME_MISMATCH"

    run(work)


def test_S0_11_the_error_is_the_documents_message_with_expiry_and_action(tmp_path: Path) -> None:
    async def work() -> None:
        tls, _ = Authority(tmp_path).server(age=3 * DAY, left=-DAY)
        async with serving(limits=tls) as bridge:
            with pytest.raises(BridgeConnectionError) as error:
                async with Client(bridge.ws_url, token="token"):
                    pass
        payload = wire.connection_error(error.value.fault, literal=True)["payload"]
        assert payload["code"] == "CONN_TLS_HANDSHAKE_FAILED"
        assert payload["message"] == "TLS certificate validation failed"
        assert payload["recoverable"] is False
        details = payload["details"]
        assert (details["reason"], details["suggested_action"]) == ("CERTIFICATE_EXPIRED", "regenerate_certificates")
        assert datetime.fromisoformat(details["expiry"]) < datetime.now(UTC)

    run(work)


def test_a_server_without_tls_at_a_wss_address_is_named() -> None:
    async def work() -> None:
        async with serving() as bridge:
            with pytest.raises(BridgeConnectionError) as error:
                async with Client(bridge.ws_url.replace("ws://", "wss://"), token="token"):
                    pass
            assert error.value.fault.context["reason"] == "HANDSHAKE_FAILED"

    run(work)


@pytest.mark.parametrize(
    ("change", "code", "pins", "reason"),
    [
        ({"not_after": -1, "is_self_signed": True, "names": ()}, 18, (), "CERTIFICATE_EXPIRED"),
        ({"not_before": 1, "names": ()}, 20, (), "CERTIFICATE_NOT_YET_VALID"),
        ({"names": ()}, 20, (), "CHAIN_INCOMPLETE"),
        ({"names": ("*.example.com",)}, 62, (), "HOSTNAME_MISMATCH"),
        ({"names": ()}, 62, ("p",), "HOSTNAME_MISMATCH"),
        ({"is_self_signed": True, "names": ()}, 18, (), "HOSTNAME_MISMATCH"),
        ({"is_self_signed": True}, 18, (), "SELF_SIGNED"),
        ({"is_self_signed": True, "names": ()}, 18, ("q",), "PIN_MISMATCH"),
        ({}, 0, ("q",), "PIN_MISMATCH"),
        ({}, 7, (), "HANDSHAKE_FAILED"),
    ],
)
def test_S0_10_the_order_is_dates_chain_names_pin(
    change: dict[str, Any], code: int, pins: tuple[str, ...], reason: str
) -> None:
    now = datetime.now(UTC)
    dates = {name: now + change.get(name, default) * DAY for name, default in (("not_before", -1), ("not_after", 1))}
    others = {"pin": "p", "names": ("bridge.local",), "is_self_signed": False} | change
    certificate = Certificate(**(others | dates))
    assert diagnose(certificate, host="bridge.local", now=now, verify_code=code, pins=pins) == reason


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [
        (("a.example.com",), "A.example.com.", True),
        (("*.example.com",), "a.example.com", True),
        (("*.example.com",), "a.b.example.com", False),
        (("*.com",), "com", False),
        (("127.0.0.1",), "127.0.0.1", True),
        (("a.example.com.evil.org",), "a.example.com", False),
    ],
)
def test_a_wildcard_stands_for_one_label(names: tuple[str, ...], host: str, fits: bool) -> None:
    now = datetime.now(UTC)
    assert Certificate("p", now, now, names, is_self_signed=False).is_for(host) is fits


@pytest.mark.parametrize("pin", ["sha256/abc", "sha1/" + "A" * 43 + "=", "", OTHER + "x"])
def test_text_that_is_no_pin_is_rejected_at_once(pin: str) -> None:
    with pytest.raises(InvalidError, match="pins"):
        Client("wss://bridge.local/ws", token="token", pins=[pin])


def test_pins_without_tls_are_a_mistake() -> None:
    with pytest.raises(InvalidError, match="wss"):
        Client("ws://127.0.0.1/ws", token="token", pins=[OTHER])
