"""A browser and a bridge for the tests of the page. They are opened for the modules that ask for them, and for no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from page_kit import Served
    from playwright.sync_api import Browser, BrowserContext, Page

LIMIT_MS = 8000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    from page_kit import Served  # noqa: PLC0415 - most tests of the bridge need no browser

    made = Served()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip(
            "Chromium is missing: the tests of the bridge's page are SKIPPED (Debian: apt-get install chromium)"
        )
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the same

    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox, and only our own page is opened.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(LIMIT_MS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Served) -> Iterator[Page]:
    """A tab that stays open over several tests: opening one takes longer than most of them."""
    from page_kit import opened  # noqa: PLC0415 - the same

    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(LIMIT_MS)
    yield opened(context, f"{served.bridge.url}/#token=token")
    context.close()
