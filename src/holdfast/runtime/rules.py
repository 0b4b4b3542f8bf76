"""The classifier of this process: our rules, and before them those that extensions have added.

Invariant: whoever adds a rule has wrapped it, so that it cannot break a classification (`holdfast.extensions` does).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.classify import Classifier, Rule

__all__ = ["IN_USE"]


class _InUse:
    """The classifier that failures are recognised by where nobody gives another."""

    def __init__(self) -> None:
        self._classifier: Classifier | None = None
        self._added: tuple[tuple[Rule, ...], ...] = ()
        self._lock = threading.Lock()

    @property
    def classifier(self) -> Classifier:
        """The rules are loaded when this is first read: importing `recover` needs none of them."""
        return self._classifier or classify.CLASSIFIER

    def add(self, rules: tuple[Rule, ...]) -> Callable[[], None]:
        """Ask these rules before all others; the function that comes back takes them out again."""
        with self._lock:
            self._use_needs_lock((rules, *self._added))

        def undo() -> None:
            with self._lock:
                self._use_needs_lock(tuple(kept for kept in self._added if kept is not rules))

        return undo

    def _use_needs_lock(self, added: tuple[tuple[Rule, ...], ...]) -> None:
        self._added = added
        rules = [rule for several in added for rule in several]
        self._classifier = classify.CLASSIFIER.with_rules(*rules) if rules else None


IN_USE = _InUse()
