"""What holds for every test."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Take what collecting has made, 18,000 tests and all they import, out of the garbage collector: it stays to the end anyway, and
    looking through it made each of the tests that collect garbage two seconds longer."""
    gc.collect()
    gc.freeze()
