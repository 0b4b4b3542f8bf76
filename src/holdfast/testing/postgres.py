"""`PrivateServer`: a PostgreSQL server for one test run, from the binaries of the machine. `PrivatePooler`: a PgBouncer before it.

Invariant: each listens only on a socket in its own folder, never runs as root, ends with the process that started it, and leaves
no files behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast._platform import need_posix

try:
    import pwd
except ModuleNotFoundError:  # Windows has no such accounts, and `PrivateServer` does not run there
    pwd = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PrivatePooler", "PrivateServer", "binaries"]

_DEBIAN = Path("/usr/lib/postgresql")
_LIMIT_S = 30.0
_POLL_S = 0.01
# PostgreSQL's packages create the user `postgres`. The user `nobody` exists on every system.
_UNPRIVILEGED = ("postgres", "nobody")
_SMALL = {
    # Without a TCP port, two test runs on one machine cannot disturb each other.
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "16MB",
    # Containers often have a /dev/shm that is too small for the default.
    "dynamic_shared_memory_type": "mmap",
    "autovacuum_naptime": "10s",
    "log_min_messages": "fatal",
    # With `wal_level = minimal` the server starts only if this is 0.
    "max_wal_senders": "0",
    "wal_level": "minimal",
}
_UNSAFE_AND_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def binaries() -> Path:
    """Return the folder of PostgreSQL's newest binaries. Raises `FileNotFoundError` if there are none.

    Debian does not put them on the PATH, so its folders are searched first.
    """
    versions = sorted(
        (folder for folder in _DEBIAN.glob("*/bin") if (folder / "initdb").is_file()),
        key=lambda folder: float(folder.parent.name),
    )
    if versions:
        return versions[-1]
    found = shutil.which("initdb")
    if found is None:
        raise FileNotFoundError("PostgreSQL's initdb was not found (Debian: apt-get install postgresql)")
    return Path(found).resolve().parent


class PrivateServer:
    """A PostgreSQL server for tests.

    For example:
        with PrivateServer() as server:
            store = open_store(server.url)

    By default it does not sync to disk, which is fast. With `durable=True` it syncs, for tests that kill it. `settings` override
    postgresql.conf. Raises `FileNotFoundError` without PostgreSQL's binaries, `OSError` if initdb fails, and `TimeoutError` if
    the server does not start.
    """

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        need_posix("PrivateServer")
        self._settings = {**_SMALL, **({} if durable else _UNSAFE_AND_FAST), **(settings or {})}
        self._bin = binaries()
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for `holdfast.stores` and psycopg."""
        return f"postgresql://holdfast@/postgres?host={self._folder}"

    def __enter__(self) -> Self:
        # Do not use pytest's tmp_path: a socket's path must be short, and the server's user must be able to reach it.
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        try:
            user = _unprivileged()
            if user is not None:
                # The server runs as this user and must own its data.
                os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._run("initdb", "-D", self._data, "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            self.start()
        except BaseException:
            # `with` does not call `__exit__` if `__enter__` fails, and the server would keep running.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # Ignore errors: a process that is just ending may still write there. The folder is temporary anyway.
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it accepts connections. After `kill` it recovers its data first."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        end = time.monotonic() + _LIMIT_S
        while not self._started(options):
            # After a kill, the old child processes hold the shared memory for a moment. The new server then exits, so retry.
            if time.monotonic() > end:
                raise TimeoutError(f"PostgreSQL did not start: {self._log.read_text()[-2_000:]}")
            time.sleep(_POLL_S)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server normally. With `immediate` all its processes end as in a crash."""
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL to the main process. Its child processes end when they notice that."""
        self._end(signal.SIGKILL)

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _started(self, options: list[str]) -> bool:
        pid_file = Path(self._data, "postmaster.pid")
        command = [str(self._bin / "postgres"), "-D", self._data, "-k", str(self._folder), *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*_as_unprivileged(ends_with_us=True), *command], cwd="/", stdout=log, stderr=log
            )
        while self._process.poll() is None:
            # The eighth line is the status. The first line must be our process: a killed server leaves its file behind.
            lines = pid_file.read_text().split("\n") if pid_file.exists() else []
            if len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(_POLL_S)
        return False

    def _run(self, name: str, *arguments: str) -> None:
        # Run it in `/`, because the unprivileged user may not enter the current folder.
        done = subprocess.run(  # noqa: S603 - our own command
            [*_as_unprivileged(), str(self._bin / name), *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise OSError(f"{name} failed: {done.stderr.strip()}")

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(_LIMIT_S)
        self._process = None


_POOLER = """[databases]
* = host={server} user=holdfast
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = 20
max_client_conn = 1000
server_login_retry = 1
server_check_delay = 0
logfile = {folder}/log
"""


class PrivatePooler:
    """A PgBouncer before a `PrivateServer`, for tests.

    For example:
        with PrivateServer() as server, PrivatePooler(server) as pooler:
            store = open_store(pooler.url)

    `mode` is PgBouncer's `pool_mode`. Raises `FileNotFoundError` without PgBouncer, and `TimeoutError` if it does not start.
    """

    def __init__(self, server: PrivateServer, mode: str = "transaction") -> None:
        self._server = server
        self._mode = mode
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for `holdfast.stores` and psycopg."""
        return f"postgresql://holdfast@/postgres?host={self._folder}"

    def __enter__(self) -> Self:
        found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
        if found is None:
            raise FileNotFoundError("PgBouncer was not found (Debian: apt-get install pgbouncer)")
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pb-"))
        try:
            settings = self._folder / "pgbouncer.ini"
            upstream = self._server.url.partition("host=")[2]
            settings.write_text(_POOLER.format(server=upstream, folder=self._folder, mode=self._mode))
            user = _unprivileged()
            if user is not None:
                for path in (self._folder, settings):
                    os.chown(path, user.pw_uid, user.pw_gid)
            command = [*_as_unprivileged(ends_with_us=True), found, "-q", str(settings)]
            self._process = subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own command
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_LIMIT_S)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        end = time.monotonic() + _LIMIT_S
        while not _answers(self._folder / ".s.PGSQL.5432"):
            if time.monotonic() > end or (self._process is not None and self._process.poll() is not None):
                log = self._folder / "log"
                raise TimeoutError(f"PgBouncer did not start: {log.read_text()[-2_000:] if log.exists() else ''}")
            time.sleep(_POLL_S)


def _answers(path: Path) -> bool:
    """Whether somebody listens at a socket. Its file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that runs the server if we are root, because PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in _UNPRIVILEGED if name in known)


def _as_unprivileged(*, ends_with_us: bool = False) -> list[str]:
    """Return the prefix of a command. setpriv replaces itself with the command, so signals reach the command itself."""
    user = _unprivileged()
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user is not None else []
    # This works on Linux only. On other systems the server keeps running after a test run was killed.
    parent = ["--pdeathsig", "QUIT"] if ends_with_us else []
    return ["setpriv", *identity, *parent] if shutil.which("setpriv") and (identity or parent) else []
