"""Rules for programs that drive a browser: Playwright, Selenium, Puppeteer and their relatives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.concepts import meant
from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import names, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.faults import Code

_LISTED = Words("browser")

_THREW = re.compile(
    r"(?:\b(?:page|frame|locator|worker|elementhandle|jshandle)\.\w+: |\bevaluation failed: |\bjavascript error: )"
    r"(?:(?:uncaught )?(?:type|syntax|reference|range|eval|uri)error: |\S+ is not (?:defined|a function))"
)
# `fetch` of a page throws a TypeError if its connection breaks.
_FETCH = phrases("failed to fetch", "fetch failed", "load failed", "networkerror when attempting")


@applies_when(phrases(_LISTED["script_threw"]))
def script_threw(evidence: Evidence) -> Verdict | None:
    """The script that the caller ran in the page is wrong. The page and the browser are well."""
    own = evidence.status is None and evidence.rpc_code is None and not evidence.matches(_FETCH)
    return Verdict(code="TOOL_EXECUTION_FAILED") if own and _THREW.search(evidence.text) else None


_NET = re.compile(r"\b(net::err|ns_error|sec_error|ssl_error|mozilla_pkix_error)_(\w+)")
_NETS: tuple[tuple[Code, re.Pattern[str]], ...] = (
    # These need a person, although they name a part of the network.
    ("PROVIDER_BAD_REQUEST", re.compile(r"auth(?!ority)|access_denied|address_in|mandatory|too_big$")),
    ("CONN_RESET", re.compile(r"bad_record_mac|handshake_not|truncated|shut_down|queue_too_large|max_socket|throttled")),
    ("CONN_TLS_HANDSHAKE_FAILED", re.compile(r"cert|issuer|ssl_(?!handshake_timed)|^ct_|pkcs")),
    ("TOOL_FILE_NOT_FOUND", re.compile(r"file_not_found")),
    ("CONN_DNS_FAILED", re.compile(r"name_|dns|unknown_host|unknown_proxy_host")),
    ("CONN_REFUSED", re.compile(r"refused")),
    ("CONN_TIMEOUT", re.compile(r"timed_out|timeout")),
    (
        "CONN_RESET",
        re.compile(r"connection|network|internet|^net_|address_|tunnel|proxy|socket|http2|quic|spdy|empty_resp|reset|interrupt|offline|chunked|length|^failed$"),
    ),
)  # fmt: skip
"""Browsers name every failure of a page. The names are made of a few words; whatever has none of these is a rule of the browser."""


def net_error(evidence: Evidence) -> Verdict | None:
    """A browser printed the name of a failure: `net::ERR_CERT_DATE_INVALID`, `NS_ERROR_UNKNOWN_HOST`."""
    if evidence.status is not None or "_" not in evidence.text:
        return None
    found = _NET.search(evidence.text)
    if found is None:
        return None
    if found[1] not in ("net::err", "ns_error"):
        return None if found[2] == "syscall" else Verdict(code="CONN_TLS_HANDSHAKE_FAILED")
    for code, words in _NETS:
        if words.search(found[2]):
            return Verdict(code=code)
    return Verdict(code="PROVIDER_BAD_REQUEST")


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


EARLY = (script_threw, net_error)
LATE = (driver,)
