"""The settings of a running program: reload them by hand or on a signal.

Invariant: settings with a mistake change nothing. The old ones stay in use, and the mistake is reported (R85).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.config.problems import ConfigError
from holdfast.config.sources import load
from holdfast.events import SuppressedError
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.config.settings import Config

__all__ = ["LiveConfig"]


class LiveConfig:
    """The settings that a runtime uses. Making one loads them as `load` does, and applies them to the runtime.

    Without `runtime`, the default runtime is used. Raises `ConfigError` if the settings have mistakes. No thread watches
    the file: call `reload`, or have a signal do it. A wrong option raises `InvalidError`.

        from holdfast.config import LiveConfig

        live = LiveConfig()
        live.reload_on_signal()         # from now on, `kill -HUP` reloads the settings
    """

    @options.suggests
    def __init__(
        self,
        runtime: Runtime | None = None,
        path: str | Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._runtime = default_runtime() if runtime is None else runtime
        self._path = path
        self._environ = environ
        self.config: Config
        """The settings in use."""
        self.problem: ConfigError | None = None
        """Why the last reload failed; None if it did not."""
        self.reload()

    def reload(self) -> Config:
        """Load the settings again, apply them and return them. If they have mistakes, raise `ConfigError`."""
        try:
            config = load(self._path, environ=self._environ)
        except ConfigError as error:
            self.problem = error
            raise
        config.apply(self._runtime)
        self.config, self.problem = config, None
        return config

    def reload_soon(self) -> None:
        """Reload before the next call, which looks its settings up. Takes no lock, so a signal handler may call it.

        A mistake is kept in `problem` and reported as a `SuppressedError` event; the call goes on with the old settings.
        """
        self._runtime.before_next_call(self._reload_or_report)

    def reload_on_signal(self, number: int | None = None) -> None:
        """Reload whenever the process gets this signal, by default SIGHUP. Only the main thread may call this.

        Raises `InvalidError` on a system without SIGHUP, if no number is given.
        """
        number = getattr(signal, "SIGHUP", None) if number is None else number
        if number is None:
            raise InvalidError.saying("reload_on_signal", "a signal's number: this system has no SIGHUP", "none")
        # The handler runs between two instructions of any code, which may hold a lock: it only leaves a note.
        signal.signal(number, lambda *_: self.reload_soon())

    def _reload_or_report(self) -> None:
        try:
            self.reload()
        except ConfigError as error:
            reason = "the configuration could not be reloaded; the old settings stay in use"
            self._runtime.bus.emit(SuppressedError.of(error.fault, reason, at=self._runtime.clock.wall()))
