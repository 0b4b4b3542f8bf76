"""`StoreConformance`: the cases as a pytest class."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing.stores.kit import CASES, Case, Kit

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.faults import Redactor
    from holdfast.stores import Store

__all__ = ["StoreConformance", "cases"]

_MODULES = tuple(
    f"holdfast.testing.stores.{name}"
    for name in ("writing", "claiming", "owning", "reading", "keeping", "auditing", "waiting", "bordering", "reopening")
)


def cases(*, durable: bool = True) -> tuple[Case, ...]:
    """Return the cases: those of a store that keeps what it holds, or of one that forgets it when it is closed."""
    # Before they are imported: an assertion that fails shall say what it compared.
    pytest.register_assert_rewrite(*_MODULES)
    for module in _MODULES:
        import_module(module)
    return tuple(case for case in CASES if durable or not case.durable)


class StoreConformance:
    """Everything a `Store` promises. A subclass says how to make one, and whether it keeps what it holds."""

    durable = True
    """Whether a store made again at the same place has what the one before it was given."""

    def make(self, place: Path, clock: Clock, redactor: Redactor) -> Store:
        """Return a store that is not open yet. `place` is a folder of the test's own; its name serves where a folder does not."""
        raise NotImplementedError

    @pytest.fixture
    def store_kit(self, tmp_path: Path) -> Kit:
        return Kit(lambda clock, redactor: self.make(tmp_path, clock, redactor))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Marked per class: which cases there are depends on `durable`.
        cls.test_conformance = _parametrized(cases(durable=cls.durable))  # type: ignore[attr-defined]


def _parametrized(chosen: tuple[Case, ...]) -> Any:
    @pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)
    def test_conformance(self: StoreConformance, case: Case, store_kit: Kit) -> None:
        del self
        asyncio.run(case.run(store_kit))

    return test_conformance
