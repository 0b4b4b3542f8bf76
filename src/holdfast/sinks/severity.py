"""Severity drives behaviour (S0-4): what is done about an operation that was given up.

Invariant: nothing is ended without the application's consent. Circuits are opened and sessions are terminated only by functions
that the application passes in. If a severity needs a function that was not passed in, the log says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.events import Failed
from holdfast.events.tracker import facts_of
from holdfast.faults import InvalidError, Severity
from holdfast.policies.severity import Reaction, reactions_to
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.sinks.metric import metric_of
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime
    from holdfast.sinks.metric import ErrorMetric

__all__ = ["react_to_failures"]

# The logging module has no level above CRITICAL, so fatal uses it too.
_LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.CRITICAL: logging.CRITICAL,
    Severity.FATAL: logging.CRITICAL,
}
_NEEDED = (Reaction.ALERT, Reaction.CIRCUIT, Reaction.TERMINATE)
"""Reactions that must be performed. The log warns if there is no function for such a reaction."""


@options.suggests
def react_to_failures(
    runtime: Runtime | None = None,
    *,
    metrics: Callable[[ErrorMetric], object] | None = None,
    notify: Callable[[Failed], object] | None = None,
    alert: Callable[[Failed], object] | None = None,
    circuit: Callable[[Failed], object] | None = None,
    terminate: Callable[[Failed], object] | None = None,
    logger: str | logging.Logger = "holdfast",
) -> Subscription:
    """Log every operation that is given up, and call the functions that its severity requires.

    `metrics` counts the failure; `notify` informs the user; `alert` calls a person; `circuit` stops calls to the target that
    failed (`manager.get_circuit(...).force_open()`); `terminate` ends the session. They run inside the call that failed, in this
    order, so they must be quick. A function that raises is reported once, and the others are still called.

        react_to_failures(notify=show_to_user, alert=page_somebody)

    Returns a subscription: `cancel` it, or use it as a context manager. Raises `InvalidError` for anything but a function.
    """
    given = {
        Reaction.METRICS: None if metrics is None else lambda event: metrics(metric_of(event)),
        Reaction.NOTIFY: notify,
        Reaction.ALERT: alert,
        Reaction.CIRCUIT: circuit,
        Reaction.TERMINATE: terminate,
    }
    # Check the functions now, because a mistake must not stay hidden until something fails.
    for reaction, function in given.items():
        if function is not None and not callable(function):
            raise InvalidError.at(f"react.{reaction}", "a function or None", function)
    reactions = _Reactions(
        default_runtime() if runtime is None else runtime,
        {reaction: function for reaction, function in given.items() if function is not None},
        logging.getLogger(logger) if isinstance(logger, str) else logger,
    )
    return subscribe(runtime, {Failed: reactions.failed}, replaces_log=True)


class _Reactions:
    def __init__(
        self, runtime: Runtime, functions: dict[Reaction, Callable[[Failed], object]], log: logging.Logger
    ) -> None:
        self._runtime = runtime
        self._functions = functions
        self._log = log

    def failed(self, event: Failed) -> None:
        for reaction in reactions_to(event.fault.severity):
            if reaction is Reaction.LOG:
                self._write(event)
            elif (function := self._functions.get(reaction)) is not None:
                self._call(reaction, function, event)
            elif reaction in _NEEDED:
                self._log.warning(
                    "%s requires the reaction '%s', but no function was given for it", event.fault.code, reaction.value
                )

    def _write(self, event: Failed) -> None:
        # Do not write the fault's own text, which may quote a prompt or a key. The facts beside it are masked.
        fault = event.fault
        name = event.operation or "the call"
        line = f"{fault.severity}: {name} failed ({fault.code}); next to act: {fault.next_actor}"
        facts = facts_of(event, process_redactor())
        self._log.log(_LEVELS[fault.severity], "%s", line, extra={"holdfast": facts})

    def _call(self, reaction: Reaction, function: Callable[[Failed], object], event: Failed) -> None:
        try:
            function(event)
        except Exception as error:  # noqa: BLE001 - no function may break the call (R25), nor the functions after it
            self._runtime.bus.hook_raised(function, f"the function for '{reaction}'", error, at=event.at, run=event.run)
