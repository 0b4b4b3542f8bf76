"""Word groups that are combined: what a sentence is about, and what happened to it.

A program may say "your balance has run out" in a hundred ways, but nearly all of them contain a word for money and a word for
its end. Each row of the table names the groups that must all occur. The rows run after every exact rule, on short texts only,
and the failures that never heal come first. A row that leads to a retry needs words that leave little doubt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.classify.phrases import find_late, late_phrases, phrases
from holdfast.classify.times import UNIT

if TYPE_CHECKING:
    from holdfast.classify.evidence import Evidence
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

__all__ = [
    "FORBIDS_A_RETRY",
    "INVALID",
    "LIMIT",
    "LOGIN",
    "LONGEST",
    "SETTING_OF_TIME",
    "SUBSCRIPTION",
    "UNACCEPTED",
    "meant",
    "passing",
    "turned_away",
]

LONGEST: Final = 600
"""In a longer text the words of two groups often stand in different sentences."""

# A failure with one of these words is not known, but it names a limit, a login or an invalidity. The same call would
# meet it again, and a retry could lock an account.
SUBSCRIPTION = phrases("subscription")
LIMIT = (
    phrases("""
    limit | quota | maximum | exceeded | exceeds | exhausted | too many | too long | too large | too big | allowance
    upgrade | credit | billing | payment | tomorrow | not eligible | ineligible | eligibility
    free tier | paid plan | purchase | at most | no more than
""")
    | SUBSCRIPTION
)
LOGIN = phrases("""
    login | log in | logged in | sign in | signed in | signed out | logged out | authenticate | authentication
    authorize | authorization | reauthenticate | re-authenticate | credential | password | passphrase | access token
    api key | api token | inactive | not active | deactivated | blocked | banned | suspended | denied | prohibited
    not allowed | not permitted | device code | expired | revoked
""")
INVALID = phrases("""
    invalid | illegal | malformed | unsupported | not supported | only supports | does not support | unrecognized | unrecognised | unknown option
    not recognized | not recognised
    cannot use both | incorrect | not valid | must be | must not | is required | missing | mismatch | incompatible
    cannot be used | bad value
    unexpected argument | check your setup | check your configuration | check your config | check your settings
    not configured | misconfigured
""")
FORBIDS_A_RETRY = LIMIT | LOGIN | INVALID

# What a sentence is about.
_PERSON = late_phrases("user | the operator | human | ctrl-c | ctrl+c | keyboardinterrupt | you\n")
_ACTION = late_phrases("tool | tool call | command | action | hook | operation | edit | execution\n")
_MONEY = late_phrases("""
    balance | credit | credits | billing | payment | prepaid | invoice | funds | wallet | spending | spend | budget | top up
    paid
""")
_PATCH = late_phrases("patch | hunk | edits | diff | directory | folder\n")
_WORK = late_phrases("operation | request | task | run | turn | job | execution | generation | query | workflow\n")
_PLACE = late_phrases("region | country | territory | location\n")
_MACHINE = late_phrases("""
    sku | size | vm | vms | virtual machine | instance type | machine type | instance class | node type | tier | resource type | gpu
    accelerator | availability zone | zone | disk type | node pool
""")
_PLAN = late_phrases(
    "upgrade | free plan | paid plan | subscription | plan | license | licence | trial | tier | seat | membership | entitlement\n"
)
_LIMIT = late_phrases("limit | quota | allowance | usage | cap\n")
_STEPS = late_phrases("""
    steps | iterations | turns | rounds | tool calls | recursion | depth | max steps | max turns | max iterations | loop
    cycles
""")
_LENGTH = late_phrases("""
    tokens | token window | context | prompt | input | conversation | kv cache | transcript | history | message length
    sequence
    output length | output tokens | max tokens | n_batch | n_tokens | characters | chunk | max_seq_len | n_ctx
    context size | text
""")
_SENT = late_phrases("""
    image | images | file | files | pdf | page | pages | document | attachment | payload | body | upload | audio | video | size
    bytes | mb | array | content | uploads | media | tools | messages | functions | parameters
""")
# "The limit of requests was reached" is about their number, not about the size of one.
_REQUEST = late_phrases("request\n")
_IDENTITY = late_phrases("""
    api key | api keys | access token | refresh token | oauth | auth token | security token | sso | api token | bearer
    session token
    private key | license key | secret key | credential | credentials | login | log in | sign in | signed in | logged in
    password
    passphrase | authenticate | authentication | authorization | account | identity | mfa | multi-factor | two-factor | 2fa
    otp
    auth | keychain | keyring | api access | device code | verification code | member | this key | your key
    credentials file | directory role | organization | organisation | workspace | certificate authority | principal
    token is | token has | token was | token expired | token invalid | token rejected | token not | token could | token does
    token must | token missing | token verification | token refresh
""")
_PERMISSION = late_phrases("""
    permission | permissions | privilege | privileges | scope | scopes | role | roles | access | authorized | administrator
    admin
    acl | rbac | iam | sudo | root
""")
_MODEL = late_phrases("model | models | deployment | engine\n")
_OUTPUT = late_phrases("""
    output | response | completion | answer | reply | arguments | function call | tool call | tool calls | generation | llm
    json
    response body | model output | chunk | assistant message
""")
_SETTINGS = late_phrases("""
    config | configuration | settings | package.json | yaml | toml | schema | environment variable | env | option | flag
    argument
    parameter | parameters | temperature | top_p | max_tokens | stop | seed | sequences | response_format | tool_choice
    dimension | dimensionality
    shape | embedding | vector | mode | endpoint | field | value | property | header | url | uri | header value | syntax
    format | type
""")
_OTHER_SIDE = late_phrases("""
    server | servers | backend | upstream | our side | our end | service | services | gateway | provider | providers
    cluster | workers
    worker | replica | broker | brokers | engine | platform | endpoint | api | host | instance | database | daemon | registry
    runner | node | nodes | pod | container | enginecore | replicas
""")
# A container, a runner or a port that is not well is on this machine, and somebody has to look at it.
_REMOTE = late_phrases("""
    server | servers | backend | upstream | service | services | gateway | provider | cluster | broker | brokers | api | registry
    platform
""")
_LINE = late_phrases("""
    connection | network | socket | stream | tunnel | proxy | transport | websocket | tcp | http2 | handshake | peer
    remote host
    internet | wifi | vpn | http client | communications link
""")
_LOCK = late_phrases(
    "lock | resource | lease | mutex | transaction | port | device | file | profile | session | database | state\n"
)

_WHO = late_phrases("""
    token | credential | credentials | login | account | organization | organisation | subscription | subscribed | password
    api key
    license | licence | permission | workspace | membership | identity | oauth | sso | your key | this key | user
""")
"""Who asks, in words that a text about a network rarely has."""

# What happened to it.
_TURNED_AWAY = late_phrases("""
    invalid | expired | revoked | disabled | inactive | required | rejected | denied | suspended | not subscribed
    deactivated | banned
    not allowed | forbidden | unauthorized | blocked | restricted | prohibited | not permitted | unauthenticated | by policy
""")
"""Words about somebody who lacks permission."""
_STOPPED = late_phrases("""
    skip | skipped | interrupted | aborted | cancelled | canceled | stopped by | cancelled by | canceled by | pressed
    cancellation | terminated by
""")
_REFUSED = late_phrases("""
    rejected | denied | declined | doesn't want | does not want | did not approve | not approved | disapproved | chose not to
    not in the allow list | not allowed | not permitted | blocked | requires approval | was refused | disallowed
""")
_SPENT = late_phrases("""
    low | run out | ran out | running out | insufficient | negative | exhausted | depleted | empty | zero | reached
    exceeded | used up
    not enough | required | no subscription | no active | cancelled | canceled | not include | not included | not in plan
    to continue | can send | a day | declined | failed | expired | inactive | overdue | unpaid | consumed | add | needed
    suspended | no longer
    out of | top up | due | disabled | has ended | lapsed | ended
""")
_REACHED = late_phrases("""
    reached | exceeded | exceeds | exhausted | used up | hit | over | consumed | used all | maxed out | full | no more
    limited | max | too many
    maximum | stopping | surpassed
""")
_OVER = late_phrases("""
    exceed | exceeding | too long | too large | too many | too big | larger than | longer than | more than | greater than
    at most | maximum | overflow
    too much | too small | is full | context full | context low | remaining | ran out of | capped | above | reached
    does not fit | doesn't fit | no room | over the limit | beyond | above the | larger | oversized | compact | limit
    no slot | cache slot
""")
UNACCEPTED = late_phrases("""
    invalid | expired | revoked | missing | failed | disabled | inactive | does not exist | lacks | required | rejected
    blocked
    authorization violation | denied | not accepted | could not | mismatch | ended | suspended | unverified | wrong | incorrect | must | please
    not valid
    unknown | not found | refused | unable | cannot | again | deactivated | banned | locked | not set | need | needed
    not recognized
    restricted | insufficient | not configured | no longer | validate | re-run | rerun | run | not a member | can't be used
    cannot be used
    no stored | no active | no valid | not a | is not | isn't | improper | stale | not in | under review | on hold
    pending review | flagged | frozen | closed
""")
_NOT_ALLOWED = late_phrases("""
    denied | disabled | blocked | restricted | insufficient | forbidden | lacks | lack | missing | required | not have
    not granted
    not allowed | not permitted | revoked | without | prohibited | only | needs | not been granted | no access
""")
_POLICY = late_phrases("""
    was filtered | been filtered | withheld | moderation | violates | violation | violate | unsafe | harmful | refusal
    terms of service | guidelines | can't help with
    cannot help with | unable to help with | disallowed content | safety | against policy | policy | offensive | copyrighted
""")
_NOT_POLICY = late_phrases(
    "authorization violation | row-level security | security policy | constraint | access violation | violation of protocol | retry policy | restart policy | sharing violation | memory safety\n"
)
_GONE = late_phrases("""
    shut down | sunset | retired | deprecated | discontinued | removed | no longer | end of life | eol | decommissioned
    obsolete
    isn't a model | not a model | missing in | withdrawn | not deployed | not installed | unknown | not exist
    doesn't exist | not found | try pulling | unsupported
""")
_UNREADABLE = late_phrases("""
    malformed | could not be parsed | cannot be parsed | not parse | couldn't parse | failed to parse | unable to parse
    parse error
    parsing | did not match | does not match | doesn't match | invalid json | not valid json | unparseable | unparsable
    missing key | did not satisfy | does not satisfy
    empty | truncated | incomplete | unexpected format | expected format | failed to decode | could not decode | garbled | blank
    right format | wrong format | format incorrect | incorrect format | bad format | failed validation | no tool call | produced no tool | no action | not follow the format
    cut off | not well formed | no json | failed to deserialize | deserialization | unserializable | missing field
    no content
""")
_WRONG = late_phrases("""
    unknown | unrecognized | unrecognised | must be | must not | must have | cannot both | mutually exclusive | not permitted
    not accepted | is not one of | not one of | out of range | positive integer | supported values | not a valid | a valid
    illegal | expecting
    cannot query | not configured | improperly formed | improperly | bad format | invalid | unsupported | not supported | expected
    allowed types | allowed values | cannot be | should be | too old
    malformed | incompatible | mismatch | outdated | required | cannot be combined | conflicting | conflicts with | duplicate
    could not be processed | could not process | cannot be processed | failed to process | unreadable | corrupt | corrupted
    not a supported | cannot parse | failed to parse | could not parse | not allowed | not available | not enabled
    isn't enabled | may not | isn't allowed | isn't supported | does not match | doesn't match
    above the | can't be | misspelled | did you mean | not expected | wrong
""")
_BROKEN = late_phrases("""
    closed | reset | lost | dropped | broken | refused | interrupted | terminated | disconnected | unreachable | cut | cut off
    went away | gone away | ended unexpectedly | ended before | hung up | disconnect | failure | unstable | severed | down
    offline
    not reachable | no connection | disposed
""")
_ILL = late_phrases("""
    busy | not ready | no workers | is starting | are starting | still starting | starting up | server starting
    is restarting | restarting | maintenance | overload | overloaded | unhealthy | degraded | outage
    recovering | is down | are down | unavailable | not available | warming | went wrong | internal error | error occurred
    try again | please retry | retry later
    unresponsive | unreachable | not reachable | can't be reached | offline | shutting down | is initializing
    still initializing | no available | scaling | at capacity | temporarily
    pool is exhausted | fault | not started | being started | not responding | are ready | on our side | on our end
    rebooting | draining | is behind | lagging | catching up | not synced | still syncing | is syncing | not yet synced
    not fully synced | failing over | failover
""")
_DIED = late_phrases(
    "died | crashed | exited unexpectedly | terminated unexpectedly | quit unexpectedly | dead | has crashed | panicked\n"
)
_STALLED = late_phrases("""
    stalled | no data received | no response received | did not respond | not respond in time | no output for | no activity
    unresponsive
    hung | time limit | took too long | taking too long | taking longer than | deadline | timed out | timeout
    no tokens received | no tokens for | no data for | no bytes for | no activity for | no output for | no events for
    request expired | task expired | job expired | query expired | operation expired
    did not finish in | did not complete in | did not complete within | time budget | ran out of time | wait time | waited
    not finish within | slow to respond | did not start | did not become ready | not become ready | not ready after
    not ready within | failed to become ready | no heartbeat | heartbeat timeout | missed heartbeat
""")
_NOT_IN_TIME = late_phrases("""
    did not become ready | not become ready | not ready after | not ready within | failed to become ready | did not start within
    no response received | did not respond | took too long | taking too long | not respond in time | did not finish in
    did not complete in | deadline
""")
_TIME_BUDGET = late_phrases("time budget", "latency budget")
_SPAN = re.compile(rf"\b\d[\d,.]* ?-?{UNIT}")
SETTING_OF_TIME = phrases("""
    timeout must | invalid timeout | timeout value | timeout parameter | timeout should | timeout cannot | timeout option
    timeout argument | deadline must | timeout is not a | unknown timeout | timeout setting | 'timeout' must | "timeout" must
    timeout is out of | timeout is negative | timeout is required | timeout out of range | timeout type | timeout index | timeout line
    timeout reasons | a timeout value | specify a timeout | parsing timeout | decoding timeout | bogus timeout | unrecognized timeout
    timeout in seconds | timeout cannot | timeout can't | timeout may not | timeout has to | timeout below | timeout above | timeout flag
    time specification | default stop timeout | stop timeout: | timeout configuration | timeout structure | setting timeout
""")
"""A time limit is named, but none ran out."""
_ENDED = late_phrases(
    "exceeded | expired | elapsed | reached | passed | waited | waiting | without | received | within | respond | after\n"
)
_HELD = late_phrases(
    "locked | in use | busy | held by | being used | already running | in progress | contention | another process\n"
)
_ABSENT = late_phrases("""
    could not find | cannot find | can't find | couldn't find | unable to find | unable to locate | could not locate
    not found | no such
    does not exist | doesn't exist | no longer exists | not exist | nothing found | no matching | no matches | unknown revision
    not registered | no route matches | no collection | named | can't load | cannot load | could not load | unable to load
    isn't registered
    unknown collection | manifest unknown | is missing | no results | could not resolve to | not installed | no module named
    was deleted | been deleted | was archived | been archived | cannot locate | no file | unknown topic | unknown table | unknown column | unknown database | unknown queue | unknown index
""")
# What a parser of JSON prints in Go, Rust, Python, JavaScript, Java and .NET. The text that it read came from the other side.
_PARSERS = late_phrases("""
    looking for beginning of | unexpected end of json | cannot unmarshal | eof while parsing | expected value at line
    expecting value
    expecting property name | unterminated string | ',' delimiter | invalid start of a value | unexpected non-whitespace
    unexpected end of input | json parse error | json.decoder | jsonparseexception | jsonexception | serde_json
    unexpected token
    after json | invalid control character | extra data: line | jsondecodeerror | json_invalid | json decode
    bad control character
    trailing characters at line | expected ident at line | key must be a string at line | line 1 column
    'utf-8' codec can't decode | invalid utf-8 | incomplete json | jsonmappingexception
""")
_UNAPPLIED = late_phrases("""
    does not apply | corrupt | could not be matched | not matched | failed to apply | not empty | conflict | rejected
    did not match
""")
_ENDED_EARLY = late_phrases("cancelled | canceled | aborted\n")
_NOT_SERVED = late_phrases(
    "not served | not available | not supported | unsupported | unavailable | restricted | blocked | not allowed\n"
)
_DISK = late_phrases("disk | storage | volume | filesystem | inode | inodes\n")
_FULL = late_phrases("full | no space | out of space | exceeded | not enough space | insufficient space | exhausted\n")

_RANGE = late_phrases("""
    must be greater than | must be less than | must be between | must be one of | must be a positive | must be an integer
    must be a number | greater than or equal to | less than or equal to | should be greater than | should be less than
    expected one of
""")

_COUNTED = late_phrases("""
    searches | requests | calls | queries | messages | generations | minutes | characters | credits | tokens | runs | seats | scans
""")
_USED_UP = late_phrases(
    "run out of | ran out of | used up | used all | no more | none left | no remaining | are left\n"
)

_Row = tuple["Code", "tuple[Phrases, ...]"]
_NEVER: tuple[_Row, ...] = (
    ("TOOL_APPROVAL_DENIED", (_PERSON, _REFUSED, _ACTION)),
    ("SYS_CANCELLED", (_PERSON, _STOPPED)),
    ("TOOL_APPROVAL_DENIED", (_ACTION, _REFUSED)),
    ("TOOL_EXECUTION_FAILED", (_PATCH, _UNAPPLIED)),
    ("SYS_CANCELLED", (_WORK, _ENDED_EARLY)),
    # A cloud lacks a kind of machine in a place. Nobody is turned away.
    ("PROVIDER_CAPABILITY_MISSING", (_PLACE, _NOT_SERVED, _MACHINE)),
    ("AUTH_REGION_BLOCKED", (_PLACE, _NOT_SERVED)),
    ("TASK_LOOP_BOUND", (_STEPS, _REACHED)),
    ("PROVIDER_BILLING", (_MONEY, _SPENT)),
    ("PROVIDER_ENTITLEMENT_MISSING", (_PLAN, _SPENT)),
    ("SYS_RESOURCE_EXHAUSTED", (_DISK, _FULL)),
    ("PROVIDER_QUOTA_EXHAUSTED", (_COUNTED, _USED_UP)),
    # "The value must be greater than or equal to 8000" names a range, not something that is too large.
    ("PROVIDER_BAD_REQUEST", (_RANGE,)),
    ("PROVIDER_CONTEXT_OVERFLOW", (_LENGTH, _OVER)),
    ("PROVIDER_REQUEST_TOO_LARGE", (_SENT, _OVER)),
    ("PROVIDER_QUOTA_EXHAUSTED", (_LIMIT, _REACHED)),
)
_ACCESS: tuple[_Row, ...] = (
    ("AUTH_FAILED", (_IDENTITY, UNACCEPTED)),
    ("AUTH_FORBIDDEN", (_PERMISSION, _NOT_ALLOWED)),
)
_WRONG_INPUT: tuple[_Row, ...] = (
    ("PROVIDER_MODEL_NOT_FOUND", (_MODEL, _GONE)),
    ("TOOL_FILE_NOT_FOUND", (_ABSENT,)),
    ("PROVIDER_UNAVAILABLE", (_OTHER_SIDE, _ILL)),
    ("PROVIDER_BAD_REQUEST", (_SETTINGS | _SENT | _REQUEST | _LENGTH | _MODEL, _WRONG)),
)
_HEALS: tuple[_Row, ...] = (
    ("CONN_RESET", (_LINE, _BROKEN)),
    ("TOOL_CRASHED", (_OTHER_SIDE, _DIED)),
    ("PROVIDER_UNAVAILABLE", (_OTHER_SIDE, _ILL)),
    ("TOOL_RESOURCE_BUSY", (_LOCK, _HELD)),
)
_ROWS = (*_NEVER, *_ACCESS, *_WRONG_INPUT, *_HEALS)


def _row(evidence: Evidence, rows: tuple[_Row, ...]) -> Code | None:
    matched = evidence.matched
    for code, groups in rows:
        for group in groups:
            if not matched & group:
                break
        else:
            return code
    return None


def _ran_out(evidence: Evidence) -> bool:
    """Whether a time ran out: a word for it, or a span of time and a word for its end."""
    if evidence.matches(SETTING_OF_TIME):
        return False
    if evidence.matches(_STALLED):
        return True
    return evidence.matches(_ENDED) and _SPAN.search(evidence.text) is not None


def turned_away(evidence: Evidence) -> bool:
    """Whether a short text names who asks and that they may not."""
    if len(evidence.text) > LONGEST:
        return False
    late = find_late(evidence.text)
    return late & _WHO != 0 and late & _TURNED_AWAY != 0


def passing(evidence: Evidence) -> Code | None:
    """Return what a text of a program means that passes: a time that ran out, a server that is not well; None otherwise."""
    evidence = msgspec.structs.replace(evidence, matched=evidence.matched | find_late(evidence.text))
    if evidence.matches(_ABSENT | _GONE):
        return None
    if evidence.matches(_NOT_IN_TIME) and not evidence.matches(SETTING_OF_TIME):
        return "TOOL_TIMEOUT"
    return "PROVIDER_UNAVAILABLE" if evidence.matches(_REMOTE) and evidence.matches(_ILL) else None


def meant(evidence: Evidence) -> Code | None:
    """Return the code of the first meaning; None for a long text.

    The order: who stopped it, what a parser printed, time, policy, limits, access, input, what passes.
    """
    if len(evidence.text) > LONGEST:
        return None
    evidence = msgspec.structs.replace(evidence, matched=evidence.matched | find_late(evidence.text))
    if evidence.matches(_PERSON) and (code := _row(evidence, _NEVER[:2])) is not None:
        return code
    if evidence.matches(_OUTPUT) and evidence.matches(_OUTPUT_LIMIT):
        # The output reached its limit. The same request would reach it again.
        return "PROVIDER_CONTEXT_OVERFLOW"
    if evidence.matches(_NO_TOOL):
        return "TOOL_NOT_FOUND"
    if evidence.matches(_PARSERS) or (evidence.matches(_OUTPUT) and evidence.matches(_UNREADABLE)):
        if evidence.matches(_OF_A_REQUEST):
            return "PROVIDER_BAD_REQUEST"
        return None if evidence.matches(_OF_A_FILE) else "PROVIDER_MALFORMED_RESPONSE"
    if _ran_out(evidence) and (evidence.matches(_TIME_BUDGET) or not evidence.matches(_MONEY | _PLAN | _ABSENT)):
        return "PROVIDER_TIMEOUT"
    used_up = evidence.matches(_LIMIT) and evidence.matches(_REACHED)
    if evidence.matches(_POLICY) and not evidence.matches(_NOT_POLICY) and not used_up:
        return "PROVIDER_CONTENT_POLICY"
    return _row(evidence, _ROWS)


_OUTPUT_LIMIT = late_phrases(
    "max tokens", "max_tokens", "token limit", "length limit", "output limit", "maximum output"
)
_NO_TOOL = late_phrases("no tool called", "no tool named", "no such tool", "tool does not exist", "no tool with")
_OF_A_REQUEST = late_phrases(
    "received request | into the target type | request body | request payload | request with invalid | your request\n"
)
_OF_A_FILE = late_phrases("config | configuration | settings | package.json | yaml | toml | manifest | lockfile\n")
