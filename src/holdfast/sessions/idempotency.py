"""The idempotency key of a step. Inside the step `call_key()` returns it. After a crash it is still the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.once.identity import call_key_in
from holdfast.runtime.ambient import AMBIENT, in_force

if TYPE_CHECKING:
    from holdfast.runtime.ambient import Ambient, Monotonic
    from holdfast.runtime.budgets.budget import Budget

__all__ = ["KeyScope", "keyed"]


class KeyScope:
    """An ambient scope that adds a key to the scope around it, and passes its deadline and budget on. `keyed` makes it."""

    __slots__ = ("_token", "around", "keys", "over", "run")

    def __init__(self, run: str, around: Ambient | None) -> None:
        self.run = run
        self.around = around
        self.over = False
        self.keys = {run: run}
        """The keys of the calls inside, by their runs."""

    def __enter__(self) -> None:
        self._token = AMBIENT.set(self)

    def __exit__(self, *_: object) -> None:
        # A task that the step started may run longer than the step. It must not use the step's key any more.
        self.over = True
        AMBIENT.reset(self._token)

    def key_of(self, run: str) -> str:
        """Return the key of a call inside the step. It is stable, because a program makes its calls in the same order."""
        return self.keys.setdefault(run, call_key_in(self.run, len(self.keys)))

    def deadline_on(self, monotonic: Monotonic) -> float | None:
        around = in_force(self.around)
        return None if around is None else around.deadline_on(monotonic)

    def cut_on(self, monotonic: Monotonic) -> float | None:
        around = in_force(self.around)
        return None if around is None else around.cut_on(monotonic)

    @property
    def budget(self) -> Budget | None:
        around = in_force(self.around)
        return None if around is None else around.budget


def keyed(run: str) -> KeyScope:
    """Return a block that runs under this key."""
    return KeyScope(run, AMBIENT.get())
