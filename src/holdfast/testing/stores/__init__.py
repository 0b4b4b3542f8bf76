"""The conformance suite of `holdfast.stores`. Its cases check the promises that every store must keep.

from holdfast.testing.stores import StoreConformance

class TestMyStore(StoreConformance):
    def make(self, place, clock, redactor):
        return MyStore(place / "sessions", clock=clock, redactor=redactor)

`conformance` has the test class and the kit of the cases. The cases are in `writes`, `claims`, `leases`, `reads`, `retention`,
`audit` and `limits`.
"""

from __future__ import annotations

from holdfast.testing.stores.conformance import Case, Kit, StoreConformance, cases

__all__ = ["Case", "Kit", "StoreConformance", "cases"]
