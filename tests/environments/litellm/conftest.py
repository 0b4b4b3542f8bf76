"""What holds for every test with the real LiteLLM."""

from __future__ import annotations

import gc

# LiteLLM is imported while pytest collects, and stays to the end. Looking for garbage in it takes longer than most tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Take what collecting has made out of the garbage collector, so that it looks only at what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()
