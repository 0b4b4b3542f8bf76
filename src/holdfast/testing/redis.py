"""`PrivateRedis`: a Redis (or Valkey) server for one test run, from the binary of the machine.

Invariant: it listens only on a socket in its own folder, ends with the process that started it, and leaves no files behind.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from holdfast._platform import need_posix

__all__ = ["PrivateRedis"]

_LIMIT_S = 30.0
_POLL_S = 0.01


class PrivateRedis:
    """A Redis server for tests.

    For example:
        with PrivateRedis() as server:
            runtime = Runtime(shared=server.url)

    `settings` are those of redis.conf. Raises `FileNotFoundError` without Redis, and `TimeoutError` if it does not start.
    """

    def __init__(self, **settings: str) -> None:
        need_posix("PrivateRedis")
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise FileNotFoundError("Redis was not found (Debian: apt-get install redis-server)")
        self._command = [found, "--port", "0", "--save", "", "--appendonly", "no"]
        for name, value in settings.items():
            self._command += [f"--{name.replace('_', '-')}", value]
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for `Runtime(shared=…)` and redis-py."""
        return f"unix://{self._folder / 'socket'}"

    def __enter__(self) -> Self:
        # Not pytest's tmp_path: a socket's path must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, empty, and wait until it accepts connections."""
        path = self._folder / "socket"
        path.unlink(missing_ok=True)
        parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*parent, *self._command, "--unixsocket", str(path), "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own command
        end = time.monotonic() + _LIMIT_S
        while True:
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(str(path)) == 0:
                    return
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError("Redis did not start")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it at once. What it kept is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_LIMIT_S)
            self._process = None

    def pause(self) -> None:
        """Let it answer nothing until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
