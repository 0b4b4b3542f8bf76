"""Certificates that a bridge makes itself: what they say, how they are exchanged under a running server, and pins."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from base64 import b64encode
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from holdfast.bridge.access.private_files import write_private
from holdfast.bridge.access.tls import RotationWatch, ServerTls, TlsFiles, facts_of, pin_of, pin_of_file
from holdfast.faults import HoldfastError, InvalidError
from holdfast.testing import VirtualClock

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def limited(test):
    """Run an async test in at most 20 seconds."""

    @wraps(test)
    def run(**fixtures) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 20))

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> TlsFiles:
    """A pair that no test changes: making a key takes a while."""
    files = TlsFiles(tmp_path_factory.mktemp("tls") / "made")
    files.create(["Bridge.Example", "192.0.2.7"])
    return files


@asynccontextmanager
async def listening(tls: ServerTls):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connected(port: int, trusted: Path | None = None, name: str = "localhost"):
    context = ssl.create_default_context(cafile=trusted)
    if trusted is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)


def pin_in_use(writer: asyncio.StreamWriter) -> str:
    return pin_of(writer.get_extra_info("ssl_object").getpeercert(True))


def test_N0_19_a_self_signed_certificate_names_loopback_the_host_and_is_for_a_year(made):
    facts = made.facts()
    assert facts.names == ("localhost", "127.0.0.1", "::1", "bridge.example", "192.0.2.7")
    assert facts.is_self_signed
    assert timedelta(days=364) < facts.not_after - datetime.now(UTC) <= timedelta(days=365)

    certificate = x509.load_pem_x509_certificate(made.cert.read_bytes())
    assert certificate.public_key().key_size == 2048
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (made.key, made.next_key))
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700


def test_a_pin_is_of_the_public_key_and_the_next_key_has_one_already(made):
    certificate = x509.load_pem_x509_certificate(made.cert.read_bytes())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    info = certificate.public_key().public_bytes(serialization.Encoding.DER, form)
    expected = f"sha256/{b64encode(sha256(info).digest()).decode()}"
    der = certificate.public_bytes(serialization.Encoding.DER)

    assert pin_of(der) == pin_of_file(made.cert) == made.facts().pin == expected
    assert made.pins()[0] == expected
    assert len(set(made.pins())) == 2


@limited
async def test_a_client_that_trusts_the_certificate_connects_by_name_and_address(made):
    async with listening(ServerTls(made.cert, made.key)) as port:
        for name in ("localhost", "127.0.0.1", "bridge.example"):
            _, writer = await connected(port, made.cert, name)
            assert pin_in_use(writer) == made.pins()[0]
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await connected(port, made.cert, "evil.example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@limited
async def test_nothing_older_than_TLS_1_2_is_spoken(made):
    async with listening(ServerTls(made.cert, made.key)) as port:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.close()


@limited
async def test_a_certificate_is_exchanged_under_a_running_server_and_the_backup_pin_holds(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create(["bridge.example"])
    first, backup = files.pins()
    tls = ServerTls(files.cert, files.key)
    async with listening(tls) as port:
        reader, before = await connected(port)
        assert not tls.reload()

        files.rotate()
        assert tls.reload()

        _, after = await connected(port)
        assert (pin_in_use(before), pin_in_use(after)) == (first, backup)
        assert files.facts().names[3:] == ("bridge.example",)
        assert files.pins()[0] == backup
        assert files.pins()[1] not in (first, backup)
        # A connection that was open goes on.
        before.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        before.close()
        after.close()


@limited
async def test_a_pair_that_does_not_fit_is_refused_and_the_old_one_stays(tmp_path, made):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    right = files.key.read_bytes()
    tls = ServerTls(files.cert, files.key)
    async with listening(tls) as port:
        write_private(files.key, made.key.read_bytes())
        with pytest.raises(HoldfastError, match="cannot be used together") as caught:
            tls.reload()
        assert caught.value.fault.code == "CONFIG_INVALID"
        # It is tried again, and says so again, until the files are right.
        with pytest.raises(HoldfastError):
            tls.reload()
        _, writer = await connected(port)
        assert pin_in_use(writer) == files.facts().pin
        writer.close()
        write_private(files.key, right)
        assert tls.reload()


def test_a_key_that_others_can_read_is_not_used(tmp_path, made):
    key = tmp_path / "key.pem"
    key.write_bytes(made.key.read_bytes())
    key.chmod(0o644)
    with pytest.raises(HoldfastError, match="can be read by other users"):
        ServerTls(made.cert, key)


def test_an_existing_key_is_not_replaced_by_accident(made):
    before = made.key.read_bytes()
    with pytest.raises(InvalidError, match="holdfast tls rotate"):
        made.create(["other.example"])
    assert made.key.read_bytes() == before


def test_missing_and_wrong_files_are_named(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    with pytest.raises(InvalidError, match="holdfast tls create"):
        files.facts()
    with pytest.raises(HoldfastError, match=r"cert\.pem"):
        ServerTls(files.cert, files.key)
    write_private(files.cert, b"not a certificate")
    with pytest.raises(InvalidError, match="a certificate as PEM or DER"):
        files.facts()
    with pytest.raises(InvalidError, match="days"):
        files.create(days=0)


def test_S0_10_what_clients_would_complain_about_is_said_in_order(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create(["bridge.example"], days=90, now=NOW)
    facts = files.facts()
    assert facts.problems(NOW, ["bridge.example", "localhost"]) == []
    assert "expires on 2027-02-14" in facts.problems(NOW + timedelta(days=80))[0]
    late = facts.problems(NOW + timedelta(days=91), ["other.example"])
    assert "it expired on 2027-02-14" in late[0]
    assert "does not name other.example" in late[1]
    assert "not valid before" in facts.problems(NOW - timedelta(days=1))[0]


def test_a_rotation_is_scheduled_announced_and_made_at_its_time(tmp_path):
    files, clock = TlsFiles(tmp_path / "tls"), VirtualClock()
    files.create(["bridge.example"])
    current, following = files.pins()
    announced = []
    watch = RotationWatch(files, announced.append, clock)
    watch.reload()
    assert announced == []

    rotation = files.schedule(clock.wall() + 86_400, days=30)
    assert rotation.pin == following
    for _ in range(3):
        watch.reload()
    assert announced == [rotation]
    later = files.schedule(clock.wall() + 90_000)
    watch.reload()
    assert announced == [rotation, later]

    clock.advance(89_999)
    watch.reload()
    assert files.pins()[0] == current
    clock.advance(1)
    watch.reload()
    assert files.pins()[0] == following
    assert files.facts().names[3:] == ("bridge.example",)
    assert announced == [rotation, later, None]
    assert files.scheduled() is None


def test_a_rotation_by_hand_cancels_the_scheduled_one_and_a_damaged_one_is_named(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    files.schedule(0.0)
    files.rotate()
    assert files.scheduled() is None
    write_private(files.rotation, b"{")
    with pytest.raises(InvalidError, match="schedule it again"):
        files.scheduled()
    with pytest.raises(InvalidError, match=r"tls\.names"):
        files.schedule(0.0, ["a" * 70 + ".example"])


def test_names_are_host_names_or_addresses(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    with pytest.raises(InvalidError, match=r"tls\.names"):
        files.create(["a" * 70 + ".example"])
    assert not files.cert.exists()
    files.create(["[2001:db8::1]", "bücher.example", "LOCALHOST"])
    assert facts_of(files.cert).names[3:] == ("2001:db8::1", "xn--bcher-kva.example")


def test_a_listener_that_never_finishes_a_handshake_is_no_problem_of_tls(made):
    """A plain client gets an error of TLS, not an answer."""

    async def main() -> bytes:
        async with listening(ServerTls(made.cert, made.key)) as port:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                await asyncio.to_thread(plain.sendall, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return await asyncio.to_thread(plain.recv, 100)

    assert b"HTTP" not in asyncio.run(main())
