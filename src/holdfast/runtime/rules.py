"""The classifier of this process: our rules, and before them those that extensions have added.

Invariant: a rule that was added cannot break a classification. What it raises is told once and it is passed over.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from holdfast.classify import CLASSIFIER, Verdict
from holdfast.faults import CATALOG, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.classify import Classifier, Evidence, Rule

__all__ = ["IN_USE", "guarded"]


class _InUse:
    """The classifier that failures are recognised by where nobody gives another."""

    def __init__(self) -> None:
        self.classifier: Classifier = CLASSIFIER
        self._added: tuple[tuple[Rule, ...], ...] = ()
        self._lock = threading.Lock()

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
        self.classifier = CLASSIFIER.with_rules(*rules) if rules else CLASSIFIER


IN_USE = _InUse()


def guarded(rule: Rule, tell: Callable[[Rule, Exception], None]) -> Rule:
    """Return `rule` so that whatever it raises, or gives in place of a verdict, is told and means nothing."""

    @functools.wraps(rule)
    def asked(evidence: Evidence) -> Verdict | None:
        try:
            verdict: object = rule(evidence)
            if verdict is None or (isinstance(verdict, Verdict) and verdict.code in CATALOG):
                return verdict
            raise InvalidError.at("what a rule returned", "a Verdict with a code of the catalog, or None", verdict)  # noqa: TRY301 - told like what it raises
        except Exception as error:  # noqa: BLE001 - classifying a failure must never be a second failure
            tell(rule, error)
            return None

    return asked
