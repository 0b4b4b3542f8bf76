"""Rules for programs that drive a browser: Playwright, Selenium, Puppeteer and their relatives."""

from __future__ import annotations

import re

from holdfast.classify.concepts import meant
from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import names, phrases

_THREW = re.compile(
    r"(?:\b(?:page|frame|locator|worker|elementhandle|jshandle)\.\w+: |\bevaluation failed: |\bjavascript error: )"
    r"(?:(?:uncaught )?(?:type|syntax|reference|range|eval|uri)error: |\S+ is not (?:defined|a function))"
)
# `fetch` of a page throws a TypeError if its connection breaks.
_FETCH = phrases("failed to fetch", "fetch failed", "load failed", "networkerror when attempting")


@applies_when(
    phrases("typeerror | syntaxerror | referenceerror | rangeerror | evalerror | urierror | javascript error\n")
)
def script_threw(evidence: Evidence) -> Verdict | None:
    """The script that the caller ran in the page is wrong. The page and the browser are well."""
    own = evidence.status is None and evidence.rpc_code is None and not evidence.matches(_FETCH)
    return Verdict(code="TOOL_EXECUTION_FAILED") if own and _THREW.search(evidence.text) else None


_DRIVERS = names(
    "playwright patchright selenium seleniumwire pyppeteer undetected_chromedriver nodriver splinter helium"
)
_PASSES = frozenset({"CONN_RESET", "PROVIDER_TIMEOUT", "PROVIDER_UNAVAILABLE", "TOOL_CRASHED"})


@applies_when(local=True)
def driver(evidence: Evidence) -> Verdict | None:
    """A driver's exception that no exact rule knows: the page does not allow the step, however often it is repeated.

    Its words are about elements and pages, so a guess by them is worth something only if it names what passes.
    """
    raised = evidence.raised
    if raised is None or raised.module.partition(".")[0] not in _DRIVERS:
        return None
    code = meant(evidence)
    return Verdict(code=code if code in _PASSES else "TOOL_EXECUTION_FAILED", weak=True)


EARLY = (script_threw,)
LATE = (driver,)
