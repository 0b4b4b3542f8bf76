"""The catalog: codes, entries and pages name the same failures, and what an entry says hangs together."""

from __future__ import annotations

import json
import re
import shutil
from string import Formatter
from typing import TYPE_CHECKING

import pytest
from scripts.codes import FAULTS, written

from holdfast.cli.exits import Exit
from holdfast.faults import CATALOG, CODES, Category, Fault, Kind, Schedule, Scope, Severity, nearest, resolve
from holdfast.faults.catalog import suggested_codes
from holdfast.runtime import page_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Entry

ENTRIES = tuple(CATALOG.values())
SECTIONS = ["What happened", "Why", "What Holdfast does", "What you can do", "How to reproduce"]

# Each name a requirement mentions, and the one code it means.
NAMED = {
    "S0-3": {
        "CONN_WEBSOCKET_CLOSED": "CONN_WEBSOCKET_CLOSED",
        "CONN_TLS_HANDSHAKE_FAILED": "CONN_TLS_HANDSHAKE_FAILED",
        "CONN_TIMEOUT": "CONN_TIMEOUT",
        "AUTH_TOKEN_EXPIRED": "AUTH_TOKEN_EXPIRED",
        "PROTO_INVALID_MESSAGE": "PROTO_INVALID_MESSAGE",
        "PROTO_SEQUENCE_ERROR": "PROTO_SEQUENCE_ERROR",
        "SESS_NOT_FOUND": "SESS_NOT_FOUND",
        "SESS_CLOSED": "SESS_CLOSED",
        "SESS_NOT_RESUMABLE": "SESS_NOT_RESUMABLE",
        "TOOL_EXECUTION_FAILED": "TOOL_EXECUTION_FAILED",
        "TOOL_TIMEOUT": "TOOL_TIMEOUT",
        "HOOK_VALIDATION_FAILED": "HOOK_VALIDATION_FAILED",
        "SYS_INTERNAL_ERROR": "SYS_INTERNAL_ERROR",
        "CIRCUIT_OPEN": "CIRCUIT_OPEN",
    },
    "N0-3": {
        "AUTH_FAILED": "AUTH_FAILED",
        "INSECURE_TRANSPORT": "CONN_INSECURE_TRANSPORT",
        "MISCONFIGURED": "CONN_MISCONFIGURED",
        "VERSION_INCOMPATIBLE": "PROTO_VERSION_INCOMPATIBLE",
        "RATE_LIMITED": "CONN_RATE_LIMITED",
        "INVALID_TOKEN": "AUTH_INVALID_TOKEN",
        "NOT_AUTHENTICATED": "AUTH_REQUIRED",
    },
    "N0-7": {
        "AUTH_FAILED": "AUTH_FAILED",
        "SESSION_NOT_FOUND": "SESS_NOT_FOUND",
        "AGENT_ERROR": "ACTOR_ERROR",
        "TOOL_ERROR": "TOOL_EXECUTION_FAILED",
        "GIT_ERROR": "TOOL_EXECUTION_FAILED",
        "RATE_LIMITED": "CONN_RATE_LIMITED",
        "BRIDGE_ERROR": "SYS_BRIDGE_ERROR",
        "PARSE_ERROR": "PROTO_INVALID_MESSAGE",
        "UNKNOWN_TYPE": "PROTO_UNKNOWN_TYPE",
        "HANDLER_ERROR": "SYS_INTERNAL_ERROR",
    },
    "N0-14": {
        "AUTH_INVALID_TOKEN": "AUTH_INVALID_TOKEN",
        "AUTH_INSUFFICIENT_SCOPE": "AUTH_INSUFFICIENT_SCOPE",
        "HOOK_INVALID_PAYLOAD": "HOOK_INVALID_PAYLOAD",
        "HOOK_AUTH_FAILED": "HOOK_AUTH_FAILED",
        "SESSION_NOT_FOUND": "SESS_NOT_FOUND",
        "SESSION_CLOSED": "SESS_CLOSED",
        "RATE_LIMIT_EXCEEDED": "CONN_RATE_LIMITED",
        "INTERNAL_ERROR": "SYS_INTERNAL_ERROR",
    },
    "N0-17": {
        "HOOK_INVALID_EVENT_TYPE": "HOOK_INVALID_EVENT_TYPE",
        "HOOK_INVALID_TIMESTAMP": "HOOK_INVALID_TIMESTAMP",
        "HOOK_STALE_TIMESTAMP": "HOOK_STALE_TIMESTAMP",
        "HOOK_INVALID_SESSION_ID": "HOOK_INVALID_SESSION_ID",
        "HOOK_INVALID_PAYLOAD": "HOOK_INVALID_PAYLOAD",
    },
    "S1-6": {
        "rate_limit": "PROVIDER_RATE_LIMITED",
        "timeout": "PROVIDER_TIMEOUT",
        "network": "CONN_RESET",
        "unavailable": "PROVIDER_UNAVAILABLE",
        "auth": "AUTH_FAILED",
        "invalid": "PROVIDER_BAD_REQUEST",
        "not_found": "PROVIDER_ENDPOINT_NOT_FOUND",
        "overflow": "PROVIDER_CONTEXT_OVERFLOW",
        "tool_error": "TOOL_EXECUTION_FAILED",
        "agent_crash": "ACTOR_CRASHED",
        "validation": "HOOK_VALIDATION_FAILED",
    },
    "S2-7": {
        "Validation/ShapeInvalid": "CONFIG_SHAPE_INVALID",
        "Validation/ContractVersionMismatch": "CONFIG_CONTRACT_MISMATCH",
        "Validation/ConfigSchemaViolation": "CONFIG_INVALID",
        "ProviderTransient/NetworkTimeout": "PROVIDER_TIMEOUT",
        "ProviderTransient/Provider5xx": "PROVIDER_INTERNAL_ERROR",
        "ProviderTransient/RateLimited": "PROVIDER_RATE_LIMITED",
        "ProviderCapability/MissingStreaming": "PROVIDER_MISSING_STREAMING",
        "ProviderCapability/MissingToolCalling": "PROVIDER_MISSING_TOOL_CALLING",
        "ProviderCapability/ContextWindowTooSmall": "PROVIDER_CONTEXT_OVERFLOW",
        "ToolTransient/ExecutionTimeout": "TOOL_TIMEOUT",
        "ToolTransient/ResourceBusy": "TOOL_RESOURCE_BUSY",
        "ToolTerminal/InputInvalid": "TOOL_INPUT_INVALID",
        "ToolTerminal/OutputMalformed": "TOOL_OUTPUT_MALFORMED",
        "ToolTerminal/Forbidden": "TOOL_FORBIDDEN",
        "ToolTerminal/NotFound": "TOOL_NOT_FOUND",
        "Session/ManifestDrift": "SESS_MANIFEST_DRIFT",
        "Session/StoreUnavailable": "SESS_STORE_UNAVAILABLE",
        "Session/ResumeMismatch": "SESS_RESUME_MISMATCH",
        "Cancellation/SessionCancelled": "SESS_CANCELLED",
        "Cancellation/TurnCancelled": "SESS_TURN_CANCELLED",
        "Cancellation/ToolCancelled": "TOOL_CANCELLED",
        "ExtensionHost/LifecycleFailure": "ACTOR_CRASHED",
        "ExtensionHost/DependencyCycle": "SYS_DEPENDENCY_CYCLE",
        "ExtensionHost/DependencyMissing": "SYS_DEPENDENCY_MISSING",
    },
    "N2-2": {
        "Session/NoSnapshot": "SESS_NO_SNAPSHOT",
        "Session/IllegalTransition": "SESS_ILLEGAL_TRANSITION",
        "Session/NoInteractorAttached": "SESS_NO_INTERACTOR",
        "Session/InteractionAlreadyAnswered": "SESS_ALREADY_ANSWERED",
        "Validation/ManifestShapeInvalid": "SESS_MANIFEST_INVALID",
        "Validation/InteractionKindUnknown": "SESS_INTERACTION_UNKNOWN_KIND",
        "Validation/InteractionPayloadMismatch": "SESS_INTERACTION_MISMATCH",
        "Validation/TimeoutMsInvalid": "CONFIG_TIMEOUT_INVALID",
        "Validation/NoInteractorsAttached": "SESS_NO_INTERACTOR",
        "Validation/ContextMutationForbidden": "TASK_CONTEXT_MUTATION",
        "Validation/StageCtxUnresolved": "TASK_STAGE_CONTEXT_UNRESOLVED",
        "Validation/StageTurnCapTooLow": "TASK_TURN_CAP_TOO_LOW",
        "Validation/StageCompletionSchemaInvalid": "TASK_COMPLETION_SCHEMA_INVALID",
        "Validation/StageJoinDangling": "TASK_JOIN_DANGLING",
        "Validation/GrantNotFound": "TASK_GRANT_INVALID",
        "Validation/GrantAlreadyConsumed": "TASK_GRANT_CONSUMED",
        "Validation/GrantStageExpired": "TASK_GRANT_EXPIRED",
        "Validation/UnknownAuditClass": "SYS_AUDIT_CLASS_UNKNOWN",
        "Validation/AuditWithoutCorrelation": "SYS_AUDIT_UNCORRELATED",
        "Validation/MCPServerNotRegistered": "TOOL_SERVER_NOT_REGISTERED",
        "ProviderCapability/MissingCapability": "PROVIDER_CAPABILITY_MISSING",
        "ProviderTransient/MCPConnectionLost": "TOOL_CONNECTION_LOST",
        "ToolTerminal/ApprovalDenied": "TOOL_APPROVAL_DENIED",
        "ToolTerminal/ToolExecutionFailed": "TOOL_EXECUTION_FAILED",
        "ExtensionHost/ParallelSiblingFailure": "TASK_SIBLING_FAILED",
        "ExtensionHost/InvalidParallelPlan": "TASK_PARALLEL_INVALID",
        "ExtensionHost/JoinPreconditionViolated": "TASK_JOIN_VIOLATED",
        "ExtensionHost/LoopBoundExceeded": "TASK_LOOP_BOUND",
        "ExtensionHost/StackInvariantViolated": "SYS_STACK_INVARIANT",
        "ExtensionHost/ConcurrentTurnForbidden": "SESS_TURN_CONCURRENT",
        "ExtensionHost/NotImplemented": "SYS_NOT_IMPLEMENTED",
        "Cancellation/StageCancelled": "TASK_STAGE_CANCELLED",
    },
    "S3-2": {
        "RESOURCE_EXHAUSTION/turns": "TASK_TURNS_EXHAUSTED",
        "RESOURCE_EXHAUSTION/context": "TASK_CONTEXT_EXHAUSTED",
        "RESOURCE_EXHAUSTION/output": "TASK_OUTPUT_EXHAUSTED",
    },
    "S3-3": {
        "TASK_FAILURE/context_retrieval_failure": "TASK_CONTEXT_RETRIEVAL_FAILED",
        "TASK_FAILURE/context_matching_failure": "TASK_CONTEXT_MATCHING_FAILED",
        "TASK_FAILURE/context_parsing_failure": "TASK_CONTEXT_PARSING_FAILED",
        "TASK_FAILURE/xml_validation_failure": "TASK_XML_INVALID",
        "TASK_FAILURE/output_format_failure": "TASK_OUTPUT_FORMAT",
        "TASK_FAILURE/execution_timeout": "TASK_TIMEOUT",
        "TASK_FAILURE/execution_halted": "TASK_HALTED",
        "TASK_FAILURE/subtask_failure": "TASK_SUBTASK_FAILED",
        "TASK_FAILURE/input_validation_failure": "TASK_INPUT_INVALID",
        "TASK_FAILURE/unexpected_error": "TASK_UNEXPECTED",
    },
    "N3-2": {
        "INVALID_OUTPUT": "TASK_OUTPUT_INVALID",
        "VALIDATION_ERROR": "TASK_MODEL_INVALID",
        "XML_PARSE_ERROR": "TASK_XML_PARSE_ERROR",
        "TASK_FAILURE/template_not_found": "TASK_TEMPLATE_NOT_FOUND",
        "TASK_FAILURE/tool_execution_error": "TOOL_EXECUTION_FAILED",
        "TASK_FAILURE/llm_error": "TASK_LLM_FAILED",
    },
    "S4-7": {
        "INVALID_MESSAGE": "PROTO_INVALID_MESSAGE",
        "NETWORK_TIMEOUT": "CONN_TIMEOUT",
        "CIRCUIT_OPEN": "CIRCUIT_OPEN",
        "TIMEOUT": "TOOL_TIMEOUT",
        "STREAM_TIMEOUT": "PROVIDER_STREAM_STALLED",
        "ACTOR_NOT_FOUND": "ACTOR_NOT_FOUND",
        "MAX_RESTARTS_EXCEEDED": "ACTOR_MAX_RESTARTS",
        "ACTOR_CRASHED": "ACTOR_CRASHED",
        "UNKNOWN_MESSAGE_TYPE": "PROTO_UNKNOWN_TYPE",
        "CLAUDE_CLI_NETWORK": "ACTOR_CLI_NETWORK",
        "CLAUDE_CLI_ERROR": "ACTOR_CLI_ERROR",
    },
}
CLASSES = {  # S2-7
    "Validation",
    "ProviderTransient",
    "ProviderCapability",
    "ToolTransient",
    "ToolTerminal",
    "Session",
    "Cancellation",
    "ExtensionHost",
}
VERBS = {"audit", "explain", "codes", "classify", "doctor", "help", "sessions", "work"}
TASKS = {*NAMED["S3-2"], *NAMED["S3-3"], *(name for name in NAMED["N3-2"] if "/" in name)} | {
    "TASK_FAILURE/unbound_symbol",  # N3-13
    "TASK_FAILURE/evaluation_failed",  # S3-18
}


def codes_where(wrong: Callable[[Entry], object]) -> list[str]:
    """The codes an entry is wrong for; tests compare with [] so that a failure lists them all."""
    return [entry.code for entry in ENTRIES if wrong(entry)]


def pages_where(wrong: Callable[[str], object]) -> dict[str, object]:
    """The pages something is wrong with, and what."""
    found = {code: wrong(page_of(code)) for code in CODES}
    return {code: what for code, what in found.items() if what}


# One list of names


def test_S0_2_codes_and_catalog_are_what_the_pages_say():
    assert [str(path.name) for path, text in written().items() if path.read_text(encoding="utf-8") != text] == []
    assert list(CATALOG) == list(CODES)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ("retryable = false", "retriable = false"),
            "CIRCUIT_OPEN.md: fields that are missing or not known: retriable",
        ),
        (('user = "', 'usr = "'), "CIRCUIT_OPEN.md: fields that are missing or not known: user, usr"),
        (('layer = "recovery"', "layer = recovery"), "CIRCUIT_OPEN.md: the head is not TOML"),
        (("+++\n", "---\n"), "CIRCUIT_OPEN.md: expected a head between two lines `+++`, got none"),
    ],
)
def test_a_page_with_a_wrong_head_is_named(tmp_path, monkeypatch, change, complaint):
    shutil.copytree(FAULTS, tmp_path / "faults")
    page = tmp_path / "faults" / "pages" / "CIRCUIT_OPEN.md"
    page.write_text(page.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    monkeypatch.setattr("scripts.codes.FAULTS", tmp_path / "faults")
    with pytest.raises(SystemExit, match=re.escape(complaint)):
        written()


def test_S0_2_a_page_is_all_that_a_new_code_needs(tmp_path, monkeypatch):
    shutil.copytree(FAULTS, tmp_path / "faults")
    pages = tmp_path / "faults" / "pages"
    page = (pages / "TOOL_TIMEOUT.md").read_text(encoding="utf-8")
    (pages / "TOOL_BARNACLED.md").write_text(page.replace("TOOL_TIMEOUT", "TOOL_BARNACLED"), encoding="utf-8")
    monkeypatch.setattr("scripts.codes.FAULTS", tmp_path / "faults")
    catalog, types = written().values()
    assert [one["code"] for one in json.loads(catalog) if one["code"] not in CATALOG] == ["TOOL_BARNACLED"]
    assert '    "TOOL_BARNACLED",\n' in types


def test_S0_2_a_code_is_upper_snake_with_a_known_prefix():
    prefixes = "CONN|AUTH|PROTO|SESS|TOOL|HOOK|SYS|PROVIDER|TASK|ACTOR|CONFIG"
    assert codes_where(lambda e: not re.fullmatch(rf"CIRCUIT_OPEN|(?:{prefixes})(?:_[A-Z0-9]+)+", e.code)) == []


def test_C31_every_name_means_exactly_one_code():
    names = [(name, entry.code) for entry in ENTRIES for name in (entry.code, *entry.aliases)]
    meant = dict(names)
    assert [pair for pair in names if meant[pair[0]] != pair[1]] == []
    assert len(names) == len(meant)
    assert [(name, code) for name, code in names if resolve(name).code != code] == []


@pytest.mark.parametrize(
    ("requirement", "name", "code"),
    [(requirement, name, code) for requirement, names in NAMED.items() for name, code in names.items()],
)
def test_every_name_of_the_documents_resolves(requirement, name, code):
    assert resolve(name).code == code, requirement


def test_a_code_is_found_in_any_case_and_between_spaces():
    assert [code for code in CODES if resolve(f"  {code.lower()}\n").code != code] == []


@pytest.mark.parametrize("name", ["", " ", "PROVIDER_", "NO_SUCH_CODE", "/", "ProviderTransient/"])
def test_what_is_no_name_resolves_to_nothing(name):
    assert resolve(name) is None


@pytest.mark.parametrize("told_by", ["classed", "task"])
def test_C31_what_an_entry_is_told_by_can_be_looked_up_again(told_by):
    def lost(entry: Entry) -> bool:
        meant = resolve(getattr(entry, told_by))
        return meant is None or getattr(meant, told_by) != getattr(entry, told_by)

    assert codes_where(lost) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("PROVIDER_OVERLOAD", "PROVIDER_OVERLOADED"),
        ("provider-rate-limited", "PROVIDER_RATE_LIMITED"),
        ("SESSION_NOT_FOUNDD", "SESS_NOT_FOUND"),
        ("ToolTerminal/Forbiden", "TOOL_FORBIDDEN"),
    ],
)
def test_nearest_guesses_a_mistyped_code_first(typed, meant):
    assert nearest(typed)[0] == meant


@pytest.mark.parametrize("typed", ["", "zzz", "💥", "x" * 500])
def test_nearest_gives_three_different_codes_whatever_was_typed(typed):
    guesses = nearest(typed)
    assert len(set(guesses)) == 3
    assert set(guesses) <= set(CODES)


@pytest.mark.parametrize("typed", ["NOPE", "x", "", "hello world"])
def test_only_codes_that_are_close_are_suggested(typed):
    assert suggested_codes(typed) == "`holdfast codes` lists all codes"
    with pytest.raises(ValueError, match=f"there is no code '{typed}'; `holdfast codes` lists all codes"):
        Fault.of(typed)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("PROVIDER_OVERLOAD", "PROVIDER_OVERLOADED"),
        ("RATE_LIMIT", "PROVIDER_RATE_LIMITED"),
        ("TOOL_TIMOUT", "TOOL_TIMEOUT"),
        ("overloaded", "PROVIDER_OVERLOADED"),
        ("BILLING", "PROVIDER_BILLING"),
    ],
)
def test_a_close_code_is_suggested(typed, meant):
    assert suggested_codes(typed).startswith(f"did you mean {meant}")


def test_nearest_gives_as_many_as_asked_for():
    assert nearest("TOOL_TIMEOUT", 1) == ["TOOL_TIMEOUT"]
    assert len(nearest("TOOL_TIMEOUT", 7)) == 7


# Traits


def test_what_is_retried_has_a_schedule_and_may_pass():
    assert codes_where(lambda e: e.retryable and e.schedule is Schedule.NONE) == []
    assert codes_where(lambda e: e.retryable and e.kind not in (Kind.TRANSIENT, Kind.RECOVERABLE)) == []


def test_S2_14_only_limits_follow_the_rate_limit_schedule():
    assert codes_where(lambda e: e.schedule is Schedule.RATE_LIMIT and e.category is not Category.RATE_LIMIT) == []


def test_cancellation_is_not_an_error():
    cancelled = [entry for entry in ENTRIES if entry.kind is Kind.CANCELLED]
    assert len(cancelled) >= 5
    for entry in cancelled:
        assert not entry.retryable, entry.code
        assert entry.severity is Severity.INFO, entry.code
        assert entry.category is Category.CANCELLED, entry.code
        assert entry.exit_code == Exit.INTERRUPTED, entry.code
        assert entry.http_status == 499, entry.code
    assert codes_where(lambda e: e.classed.startswith("Cancellation/") is not (e.kind is Kind.CANCELLED)) == []


def test_C34_what_passes_by_itself_is_an_error_and_an_open_circuit_is_critical():
    assert codes_where(lambda e: e.kind is Kind.TRANSIENT and e.severity is not Severity.ERROR) == ["CIRCUIT_OPEN"]
    assert CATALOG["CIRCUIT_OPEN"].severity is Severity.CRITICAL


def test_C34_an_expected_failure_is_at_most_an_error():
    expected = (Severity.WARNING, Severity.ERROR)
    assert codes_where(lambda e: e.kind is Kind.RECOVERABLE and e.severity not in expected) == []


def test_C34_what_ends_a_session_or_a_supervisor_is_fatal_and_nothing_else():
    assert codes_where(lambda e: e.severity is Severity.FATAL) == ["SESS_LEASE_LOST", "ACTOR_MAX_RESTARTS"]


def test_the_http_status_says_that_it_failed():
    assert codes_where(lambda e: not 400 <= e.http_status <= 599) == []


def test_the_exit_code_is_one_of_the_contract_and_says_why():
    nameless = ("TOOL_COMMAND_NOT_FOUND", "CONFIG_CODE_UNKNOWN")
    assert codes_where(lambda e: e.exit_code not in set(Exit) - {Exit.OK}) == []
    assert codes_where(lambda e: e.exit_code == Exit.CIRCUIT_OPEN) == ["CIRCUIT_OPEN"]
    assert codes_where(lambda e: e.exit_code == Exit.TIMEOUT and e.category is not Category.TIMEOUT) == []
    assert codes_where(lambda e: e.exit_code == Exit.EXHAUSTED and e.kind is not Kind.TRANSIENT) == [
        "SYS_FALLBACKS_EXHAUSTED"
    ]
    assert (
        codes_where(
            lambda e: e.exit_code == Exit.NOT_FOUND and e.http_status not in (404, 410) and e.code not in nameless
        )
        == []
    )


def test_the_close_code_is_one_a_websocket_knows_or_the_bridge_defines():
    standard = {1000, 1001, 1002, 1003, 1006, 1007, 1009, 1012, 1013, 1015}
    ours = {*range(4000, 4006), *range(4500, 4510)}
    assert codes_where(lambda e: e.close_code not in standard | ours) == []


def test_a_connection_that_may_come_back_is_not_closed_for_good():
    """4500 and above forbid the client to reconnect."""
    assert codes_where(lambda e: e.scope is Scope.CONNECTION and e.retryable and e.close_code >= 4500) == []


def test_S2_7_the_class_is_one_of_the_eight():
    pair = re.compile(rf"(?:{'|'.join(sorted(CLASSES))})/[A-Z][A-Za-z0-9]+")
    assert codes_where(lambda e: not pair.fullmatch(e.classed)) == []
    assert {entry.classed.partition("/")[0] for entry in ENTRIES} == CLASSES


def test_S3_1_the_task_type_is_known():
    assert codes_where(lambda e: e.task not in TASKS) == []
    assert {entry.task for entry in ENTRIES} == TASKS


@pytest.mark.parametrize(
    ("requirement", "name", "status"),
    [
        ("N0-12", "WS_UPGRADE_REQUIRED", 400),
        ("N0-14", "AUTH_INVALID_TOKEN", 401),
        ("N0-14", "AUTH_INSUFFICIENT_SCOPE", 403),
        ("N0-14", "HOOK_INVALID_PAYLOAD", 400),
        ("N0-14", "HOOK_AUTH_FAILED", 401),
        ("N0-14", "SESSION_NOT_FOUND", 404),
        ("N0-14", "SESSION_CLOSED", 409),
        ("N0-14", "RATE_LIMIT_EXCEEDED", 429),
        ("N0-14", "INTERNAL_ERROR", 500),
    ],
)
def test_the_http_statuses_the_documents_state(requirement, name, status):
    assert resolve(name).http_status == status, requirement


@pytest.mark.parametrize(
    ("name", "retryable"),
    [
        ("AUTH_FAILED", False),
        ("SESSION_NOT_FOUND", False),
        ("AGENT_ERROR", True),
        ("RATE_LIMITED", True),
        ("BRIDGE_ERROR", True),
    ],
)
def test_N0_7_who_may_simply_try_again(name, retryable):
    assert resolve(name).retryable is retryable


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NETWORK_TIMEOUT", Kind.TRANSIENT),
        ("CIRCUIT_OPEN", Kind.TRANSIENT),
        ("ACTOR_NOT_FOUND", Kind.PERMANENT),
        ("MAX_RESTARTS_EXCEEDED", Kind.FATAL),
        ("ACTOR_CRASHED", Kind.FATAL),
        ("CLAUDE_CLI_NETWORK", Kind.TRANSIENT),
        ("CLAUDE_CLI_ERROR", Kind.PERMANENT),
    ],
)
def test_S4_7_kinds(name, kind):
    assert resolve(name).kind is kind


def test_C11_an_open_circuit_is_transient_and_never_retried():
    entry = CATALOG["CIRCUIT_OPEN"]
    assert (entry.kind, entry.retryable, entry.schedule) == (Kind.TRANSIENT, False, Schedule.NONE)


def test_S1_6_the_code_a_category_stands_for_is_of_that_category():
    assert {name: resolve(name).category for name in NAMED["S1-6"]} == {name: name for name in NAMED["S1-6"]}


# Wording


def _texts(entry: Entry) -> tuple[str, ...]:
    return (entry.message, entry.user, *entry.suggestions)


def test_FC7_part_6_a_tool_s_forbidden_and_not_found_are_those_categories():
    tools = {code: entry for code, entry in CATALOG.items() if code.startswith("TOOL_")}
    assert {entry.category for entry in tools.values() if entry.classed == "ToolTerminal/Forbidden"} == {Category.AUTH}
    assert {entry.category for entry in tools.values() if entry.classed == "ToolTerminal/NotFound"} == {
        Category.NOT_FOUND
    }
    for code in ("TOOL_NOT_FOUND", "TOOL_FILE_NOT_FOUND", "TOOL_COMMAND_NOT_FOUND", "TOOL_FORBIDDEN"):
        assert not tools[code].retryable


def test_every_entry_says_what_to_do():
    assert codes_where(lambda e: not e.suggestions) == []


@pytest.mark.parametrize("unwanted", ["!", "  ", "an error occurred", "oops", "sorry"])
def test_texts_are_calm(unwanted):
    assert codes_where(lambda e: any(unwanted in text.lower() for text in _texts(e))) == []


def test_texts_begin_and_end_properly():
    assert codes_where(lambda e: any(text != text.strip() for text in _texts(e))) == []
    assert codes_where(lambda e: any(not text[0].isupper() and text[0] not in "[`" for text in _texts(e))) == []
    assert codes_where(lambda e: not e.user.endswith(".")) == [], "a person reads sentences"
    assert codes_where(lambda e: e.message.endswith((".", ",", ":", ";"))) == [], "a log line is not a sentence"
    assert codes_where(lambda e: any(text.endswith((".", ",", ":", ";")) for text in e.suggestions)) == []


def test_S2_11_a_person_is_shown_no_machinery():
    """Facts may hold anything, so a person sees only the catalog's own text."""
    assert codes_where(lambda e: "{" in e.user or "HTTP" in e.user or e.code in e.user) == []


def test_messages_only_name_plain_fields():
    def fancy(entry: Entry) -> bool:
        fields = [part[1:] for part in Formatter().parse(entry.message) if part[1] is not None]
        return any(not name.isidentifier() or spec or conversion for name, spec, conversion in fields)

    assert codes_where(fancy) == []
    assert codes_where(lambda e: "{" in e.message), "some messages do name facts"


def test_a_suggestion_names_only_commands_that_exist():
    assert codes_where(lambda e: set(re.findall(r"`holdfast (\w+)", " ".join(e.suggestions))) - VERBS) == []


# Pages


def test_a_pages_title_names_its_code():
    assert {code for code in CODES if not re.match(rf"# {code}: \S.+[^.!:]\n", page_of(code))} == set()


def test_a_page_has_five_sections_in_their_order_and_none_is_empty():
    def wrong(page: str) -> object:
        prose = re.sub(r"^```.*?^```", "(block)", page, flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^(#+) (.+)$", prose, re.MULTILINE)[1:]
        parts = re.split(r"^## .+$", prose, flags=re.MULTILINE)[1:]
        return headings != [("##", section) for section in SECTIONS] or not all(part.strip() for part in parts)

    assert pages_where(wrong) == {}


def test_a_pages_lines_fit_a_terminal():
    assert pages_where(lambda page: [line for line in page.splitlines() if len(line) > 120]) == {}


@pytest.mark.parametrize(
    "unwanted",
    [
        pytest.param(r"https?://[a-z0-9]", id="web"),
        pytest.param(r"\]\(", id="link"),
        pytest.param(r"/(?:home|root|Users|work|tmp)/", id="machine"),
        pytest.param(r"(?i)\ban error occurred", id="filler"),
    ],
)
def test_a_page_works_offline_and_anywhere(unwanted):
    assert pages_where(lambda page: re.findall(unwanted, page)) == {}


def test_a_page_ends_with_one_block_that_can_be_run():
    def wrong(page: str) -> object:
        last = page.partition("## How to reproduce\n")[2].strip()
        return page.count("```") != 2 or not re.fullmatch(r"```(?:console|python)\n.+\n```", last, re.DOTALL)

    assert pages_where(wrong) == {}


def test_a_page_names_only_codes_that_exist():
    code_like = re.compile(r"`((?:CONN|AUTH|PROTO|SESS|TOOL|HOOK|SYS|PROVIDER|TASK|ACTOR|CONFIG)_[A-Z_]+)`")
    other_things = {"HOOK_TOKEN", "TASK_FAILURE"}

    def wrong(page: str) -> object:
        return {name for name in code_like.findall(page) if resolve(name) is None} - other_things

    assert pages_where(wrong) == {"CONFIG_CODE_UNKNOWN": {"PROVIDER_OVERLOAD"}}, "whose subject is a wrong code"


def test_a_page_names_only_commands_that_exist():
    assert pages_where(lambda page: set(re.findall(r"[`$] ?holdfast ([a-z]+)", page)) - VERBS) == {}


def test_a_user_is_not_promised_a_fallback_when_a_circuit_is_open():
    """The fallback may be missing, or have failed too."""
    assert "fallback" not in CATALOG["CIRCUIT_OPEN"].user
