"""A running program's settings: reload them, by hand or on a signal.

Invariant: settings that are wrong change nothing; the old ones hold, and it is told (R85).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

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
    """The settings in force in a runtime. Making one loads and applies them, or refuses with everything that is wrong."""

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
        """What holds now."""
        self.problem: ConfigError | None = None
        """Why the last reload was refused; None where it was not."""
        self.reload()

    def reload(self) -> Config:
        """Read the settings again and put them in force; where they are wrong, raise that and keep the old ones."""
        try:
            config = load(self._path, environ=self._environ)
        except ConfigError as error:
            self.problem = error
            raise
        config.apply(self._runtime)
        self.config, self.problem = config, None
        return config

    def reload_soon(self) -> None:
        """Reload when the next call looks its settings up. Takes no lock: it may be called from a signal's handler."""
        self._runtime.before_next_call(self._reload_or_tell)

    def reload_on_signal(self, number: int | None = None) -> None:
        """Reload when the process gets this signal, SIGHUP by default. Only the main thread may say so."""
        number = getattr(signal, "SIGHUP", None) if number is None else number
        if number is None:
            raise InvalidError.saying(
                "reload_on_signal", "the number of a signal, since there is no SIGHUP here", "none"
            )
        signal.signal(number, lambda *_: self.reload_soon())

    def _reload_or_tell(self) -> None:
        try:
            self.reload()
        except ConfigError as error:
            reason = "the configuration could not be reloaded; the old one holds"
            self._runtime.bus.emit(SuppressedError.of(error.fault, reason, at=self._runtime.clock.wall()))
