"""Guesses: what single words say about a short text or an exception that no other rule knows.

A person who reads "replica lag too high, read rejected" has never seen the sentence and still knows that it passes. The
rows here do the same with two groups of words each: what the text is about, and what happened to it. They are wrong more often
than the exact rules, so they run last, they are weak, and what a person must change stands before what passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.classify.concepts import FORBIDS_A_RETRY, SETTING_OF_TIME
from holdfast.classify.phrases import late_phrases, phrases

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

__all__ = ["SENTENCE", "healing", "staying"]

SENTENCE: Final = 300
"""A longer text is not one sentence, and its words belong to different things."""
_ABSENT = phrases("does not exist", "not found", "no such")
_Row = tuple["Code", "Phrases", "Phrases"]

# What a person must change.
_STAYING: tuple[_Row, ...] = (
    (
        "SYS_CANCELLED",
        late_phrases("run | job | turn | task | request | build | workflow\n"),
        late_phrases("superseded | replaced by a newer | cancelled | canceled\n"),
    ),
    (
        "AUTH_REQUIRED",
        late_phrases("approval | human | a person | confirmation | captcha | verification | consent | terms\n"),
        late_phrases(
            "needs | need | needed | required | requires | must | no terminal | non-interactive | first | pending\n"
        ),
    ),
    (
        "PROVIDER_QUOTA_EXHAUSTED",
        late_phrases("tokens | credits | requests | messages | budget | minutes | generations | searches\n"),
        late_phrases("for today | this month | this week | until tomorrow | out of | used up | per day | a month\n"),
    ),
    (
        "PROVIDER_ENTITLEMENT_MISSING",
        late_phrases(
            "plan | seat | license | licence | premium | invoice | trial | free tier | subscription | edition\n"
        ),
        late_phrases(
            "only | not | paused | ended | assigned | withdrawn | required | unpaid | no longer | needs | available on\n"
        ),
    ),
    (
        "PROVIDER_BILLING",
        late_phrases("card | payment method | invoice | bank\n"),
        late_phrases("refused | declined | unpaid | overdue | rejected | expired\n"),
    ),
    (
        "TASK_LOOP_BOUND",
        late_phrases("tool calls | steps | turns | iterations | depth | rounds\n"),
        late_phrases("spent | used up | reached | exhausted | no more\n"),
    ),
    (
        "AUTH_FORBIDDEN",
        late_phrases("""
        admin | administrator | organization | organisation | workspace | permission | host key | key | account | model | path | tool
        signature | policy | license
    """),
        late_phrases("""
        may not call | may not use | lacks | turned off | forbids | forbid | escapes | revoked | gated | accept the | paused | outside the | key changed | not shared with
        not assigned | switched off by | locked out | requires sso | ask an owner | ask an admin | ask your admin | contact an admin | contact your admin
    """),
    ),
    (
        "PROVIDER_CONTEXT_OVERFLOW",
        late_phrases("tokens | window | prompt | context | kv cache | conversation | input\n"),
        late_phrases("window is | allows | fit | full | too big | at most | over the | too long | only\n"),
    ),
    (
        "PROVIDER_REQUEST_TOO_LARGE",
        late_phrases("mb | gb | kb | bytes | pages | attachment | entity | payload | upload\n"),
        late_phrases("over the | cap | too large | too big | at most | allowed | limit\n"),
    ),
    (
        "PROVIDER_MODEL_NOT_FOUND",
        late_phrases("model | models | deployment | snapshot\n"),
        late_phrases("shut off | withdrawn | retired | gone | removed | no longer | sunset | discontinued\n"),
    ),
    (
        "PROVIDER_BAD_REQUEST",
        late_phrases("""
        prompt | image | audio | video | message | schema | tool | request | parameter | field | signature | value | header | body | file
        argument | url
    """),
        late_phrases("""
        rejected | could not be decoded | cannot be decoded | mismatch | wrong | duplicate | disabled | flagged | not accepted
        not allowed | outdated | unsupported | ambiguous | contradicts | disallowed
    """),
    ),
    (
        "TOOL_EXECUTION_FAILED",
        late_phrases("""
        element | hunk | patch | port | module | driver | checksum | old text | action | build | abi | precondition | conditionnotmet
        symbol | migration | lockfile | binary
    """),
        late_phrases("""
        covered | did not apply | already taken | in use | different | too old | wrong | repeated | appears | mismatch | incompatible
        conditionnotmet | missing | stopping | newer | unmet
    """),
    ),
    (
        "TOOL_FILE_NOT_FOUND",
        late_phrases(
            "file | page | selector | element | record | assistant | thread | session | item | resource | release | object\n"
        ),
        late_phrases(
            "never appeared | was removed | was deleted | is gone | vanished | no longer there | none matches | matches the\n"
        ),
    ),
)
# What passes.
_HEALING: tuple[_Row, ...] = (
    (
        "PROVIDER_MALFORMED_RESPONSE",
        late_phrases(
            "response | reply | assistant | llm | model | completion | answer | turn | json | output | generation | function call | tool call | arguments\n"
        ),
        late_phrases("""
        garbage | returned nothing | broken json | broken | wrong format | no answer | garbled | contained no | contains no | did not contain | does not contain | without output | without text | cut short
        instead of json | html page | bad json | unexpected end | nonsense | no text | no tool call | nothing usable | empty | blank
        ended without | unreadable | could not be read
    """),
    ),
    (
        "TOOL_CRASHED",
        late_phrases(
            "container | agent | build | process | worker | tab | sandbox | browser | vm | kernel | renderer | child | interpreter | runner\n"
        ),
        late_phrases(
            "went away | is gone | killed | segfault | segfaulted | gone away | oom-killed | oom | was killed | crashed | died | disappeared | vanished | exited early\n"
        ),
    ),
    (
        "PROVIDER_TIMEOUT",
        late_phrases(
            "page | answer | reply | handshake | health check | request | response | step | call | query | job | server | service | load | loading | download | stream | tool\n"
        ),
        late_phrases(
            "did not finish | in time | never completed | did not answer | did not reply | never answered | never finished | not finished | still waiting | too slow | ran for more than | never returned\n"
        ),
    ),
    (
        "PROVIDER_UNAVAILABLE",
        late_phrases("""
        lock | cache | service | origin | daemon | registry | search | inference | row | leader | replica | mirror | coordinator | shard | shards | index | cluster | queue | pool | backend | upstream | primary
        node | master | lease | slot | partition | broker
    """),
        late_phrases("""
        held | rolling over | rebuilding | reindexing | unreachable | cannot talk | changed since | not elected | lag | syncing | load in progress | shards failed | saturated | is full | behind | not master
        rebalancing | relocating | backed up | expired | elsewhere | no live upstream | no upstream server | no upstream to | pool empty | not yet | busy
    """),
    ),
)
_PASSING: tuple[tuple[Code, Phrases], ...] = (
    (
        "PROVIDER_TIMEOUT",
        late_phrases("""
        timed out | timeout | time out | deadline | no response | not responding | unresponsive | stalled | hang | hung | heartbeat
        keepalive
    """),
    ),
    (
        "PROVIDER_UNAVAILABLE",
        late_phrases("""
        maintenance | outage | inaccessible | overloaded | overload | congested | degraded | unavailable | temporarily
        temporary error | temporary failure | temporary issue | temporary network | temporary outage | temporary problem | is temporary
        transient | intermittent | spurious | unable to handle the request | starting up | shutting down | restarting | rebooting
        not ready | server error | internal error | backend error | upstream error | endpoint error | provider error | high demand
        at capacity | no capacity | insufficient capacity | offline | is down | went down | unhealthy | recovering | saturated
        in recovery | retry later | try again | retry in | still running
    """),
    ),
    (
        "CONN_RESET",
        late_phrases("""
        eof | dial | dialing | unreachable | disconnected | disconnect | reconnect | reconnecting | hung up | reset by | connection
        unexpectedly closed | closed unexpectedly | transport error | stream error | socket error | syscall error | network error | handshake
        websocket | goaway | record mac | nxdomain | dns | network failed | network failure | tunnel error | tunnel failed | vpn
        hostname lookup | socket failed | peer error | peer failed | packet loss | socket closed | peer closed | network is | network connection
    """),
    ),
)
"""Single words for what passes: a time that ran out, a server that is not well, a line that broke."""
_BREAKS = late_phrases("""
    error | failed | fail | failure | lost | closed | close | broken | reset | refused | dropped | interrupted | unexpected | terminated
    disconnected | unreachable | eof | aborted | lookup | nxdomain | blocking | bad
""")
_STAYS = late_phrases("""
    permission | privilege | policy | unsupported | deprecated | removed | corrupt | syntax | disk | space | cancelled | canceled
    user | already | exists | existing | configuration | config | setting | settings | option | schema | version | install
    installed | approval | sandbox | hook | compile | test | tests | assertion | parse | parsing | marshal | unmarshal | encode
    decode | decoding | encoding | namespace | driver | bug | listener | negative | positive | bogus | should | expected | must
""")
"""Words for what a person must change."""


def _row(late: Phrases, rows: tuple[_Row, ...]) -> Code | None:
    return next((code for code, about, happened in rows if late & about and late & happened), None)


def staying(text: str, late: Phrases) -> Code | None:
    """Return what a short text names that a person must change; None if it names nothing."""
    return None if len(text) > SENTENCE else _row(late, _STAYING)


def healing(text: str, matched: Phrases, late: Phrases) -> Code | None:
    """Return what a text names that passes; None if it names nothing, or something that would stay."""
    if matched & (FORBIDS_A_RETRY | _ABSENT | SETTING_OF_TIME):
        return None
    if len(text) <= SENTENCE and (code := _row(late, _HEALING)) is not None:
        return code
    if late & _STAYS:
        return None
    for code, group in _PASSING:
        if late & group and (code != "CONN_RESET" or late & _BREAKS):
            return code
    return None
