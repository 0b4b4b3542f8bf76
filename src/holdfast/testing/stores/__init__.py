"""The conformance suite of `holdfast.stores`: what a store promises, as cases that any store can be run through.

from holdfast.testing.stores import StoreConformance

class TestMyStore(StoreConformance):
    def make(self, place, clock, redactor):
        return MyStore(place / "sessions", clock=clock, redactor=redactor)

conformance  `StoreConformance`, for pytest; `cases`, for other runners
kit          what a case is given; writing, claiming, owning, reading, keeping, auditing, waiting, bordering: the cases
"""

from __future__ import annotations

from holdfast.testing.stores.conformance import StoreConformance, cases
from holdfast.testing.stores.kit import Case, Kit

__all__ = ["Case", "Kit", "StoreConformance", "cases"]
