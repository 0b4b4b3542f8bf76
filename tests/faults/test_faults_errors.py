"""The exceptions that are ours."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Annotated

import msgspec
import pytest

from holdfast.actors import AskTimeoutError, ChildNotFoundError, ChildStoppedError, GaveUpError, StartError
from holdfast.actors.process import RemoteError
from holdfast.actors.resilience import OperationCancelledError, OperationTimeoutError, _ReturnedError
from holdfast.actors.virtual import SaveError
from holdfast.agents.command_faults import CommandError, CommandTimeoutError
from holdfast.agents.usage_limit import ParkedError
from holdfast.bridge import BridgeConnectionError
from holdfast.bridge.client.errors import ReconnectionExhaustedError
from holdfast.bridge.http.responses import RejectedError
from holdfast.extras import MissingExtraError
from holdfast.faults import (
    AbortedError,
    BudgetError,
    CircuitOpenError,
    DeadlineError,
    Fault,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    Partial,
    StreamCutError,
    resolve,
)
from holdfast.runtime.operation.responses import FailedResponseError
from holdfast.runtime.streams.flow import StreamDeadlineError
from holdfast.tasks import TaskError
from holdfast.tasks.stages import StageError
from holdfast.tools import ProcessError, ToolError
from holdfast.tools.process_error import ProcessTimeoutError
from holdfast.workflow import WorkflowError
from holdfast.workflow.errors import UnboundSymbolError, WorkflowSyntaxError

LEAVES = {
    CircuitOpenError: ("CIRCUIT_OPEN", ()),
    DeadlineError: ("SYS_DEADLINE_EXCEEDED", (TimeoutError, OSError)),
    AbortedError: ("SYS_CANCELLED", ()),
    BudgetError: ("SYS_BUDGET_EXHAUSTED", ()),
    StreamCutError: ("PROVIDER_STREAM_CUT", ()),
    OutcomeUnknownError: ("TOOL_OUTCOME_UNKNOWN", ()),
    InvalidError: ("CONFIG_OPTION_INVALID", (ValueError,)),
    MissingExtraError: ("SYS_DEPENDENCY_MISSING", (ModuleNotFoundError,)),
    AskTimeoutError: ("SYS_TIMEOUT", (TimeoutError,)),
    OperationTimeoutError: ("TOOL_TIMEOUT", (TimeoutError,)),
    OperationCancelledError: ("SYS_CANCELLED", ()),
    ChildNotFoundError: ("ACTOR_NOT_FOUND", (LookupError,)),
    ChildStoppedError: ("ACTOR_STOPPED", ()),
    GaveUpError: ("ACTOR_MAX_RESTARTS", ()),
    StartError: ("ACTOR_START_FAILED", ()),
    CommandError: ("ACTOR_CLI_ERROR", ()),
    ParkedError: ("PROVIDER_QUOTA_EXHAUSTED", ()),
    ProcessError: ("TOOL_EXECUTION_FAILED", ()),
    RemoteError: ("ACTOR_ERROR", ()),
    SaveError: ("SESS_STORE_UNAVAILABLE", ()),
    WorkflowError: ("TASK_EVALUATION_FAILED", ()),
    BridgeConnectionError: ("CONN_WEBSOCKET_CLOSED", (ConnectionError,)),
    RejectedError: ("PROTO_INVALID_MESSAGE", ()),
    StageError: ("TASK_STAGE_FAILED", ()),
    TaskError: ("TASK_UNEXPECTED", ()),
    ToolError: ("TOOL_EXECUTION_FAILED", ()),
    CommandTimeoutError: ("PROVIDER_STREAM_STALLED", (CommandError, TimeoutError)),
    ProcessTimeoutError: ("TOOL_TIMEOUT", (ProcessError, TimeoutError)),
    ReconnectionExhaustedError: ("CONN_RECONNECT_EXHAUSTED", (BridgeConnectionError,)),
    WorkflowSyntaxError: ("TASK_SYNTAX_ERROR", (WorkflowError,)),
    UnboundSymbolError: ("TASK_UNBOUND_SYMBOL", (WorkflowError,)),
    StreamDeadlineError: ("PROVIDER_STREAM_CUT", (StreamCutError, DeadlineError, TimeoutError)),
}
INSIDE = {FailedResponseError, _ReturnedError}
"""Each carries a response through the recovery, and no caller gets it."""
KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"


@pytest.mark.parametrize(("leaf", "code", "also"), [(leaf, *what) for leaf, what in LEAVES.items()])
def test_a_leaf_is_ours_with_its_code_and_the_builtin_people_catch(leaf, code, also):
    error = leaf.because()
    assert isinstance(error, HoldfastError)
    assert error.fault == Fault.of(code)
    for base in also:
        assert isinstance(error, base)


def test_no_leaf_is_forgotten_here():
    # An integration may have a class of its own, and so may a test.
    known = {leaf for leaf in HoldfastError.__subclasses__() if leaf.__module__.startswith("holdfast.")}
    known = {leaf for leaf in known if not leaf.__module__.startswith("holdfast.integrations")}
    assert known - INSIDE == {leaf for leaf in LEAVES if HoldfastError in leaf.__bases__}


@pytest.mark.parametrize("leaf", [HoldfastError, *LEAVES])
def test_an_error_survives_pickling_and_copying_with_its_fault(leaf):
    error = leaf(Fault.of(leaf.code, "half", context={"key": "k", "circuit": "c"}, partial=Partial(payload=[1])))
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is leaf
        assert twin.fault == error.fault
        assert str(twin) == str(error)


@pytest.mark.parametrize("leaf", [HoldfastError, *LEAVES])
def test_the_text_starts_with_the_code_and_holds_no_secret(leaf):
    error = leaf.because(f"refused: {KEY}")
    assert str(error) == f"{leaf.code}  refused: [redacted]"
    assert KEY not in "".join(traceback.format_exception(error))


def test_because_fills_the_catalogs_wording():
    error = CircuitOpenError.because(circuit="provider:claude", until="14:02:10 UTC", reason="PROVIDER_OVERLOADED")
    assert str(error) == "CIRCUIT_OPEN  Circuit provider:claude is open until 14:02:10 UTC: PROVIDER_OVERLOADED"


def test_R43_an_open_circuit_says_who_and_until_when():
    error = CircuitOpenError.because(circuit="provider:claude", retry_at=1_700_000_000)
    assert (error.circuit, error.retry_at) == ("provider:claude", 1_700_000_000.0)
    assert (CircuitOpenError.because().circuit, CircuitOpenError.because().retry_at) == ("", None)
    assert CircuitOpenError.because(retry_at="soon").retry_at is None


def test_R75_a_cut_stream_carries_what_arrived():
    error = StreamCutError(Fault.of("PROVIDER_STREAM_CUT", partial=Partial(payload="The answer is")))
    assert error.partial.payload == "The answer is"
    assert StreamCutError.because().partial is None


def test_an_unknown_outcome_names_the_call_to_look_up():
    assert OutcomeUnknownError.because(key="release-42/deploy/1").key == "release-42/deploy/1"
    assert OutcomeUnknownError.because().key == ""


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        (-1, "-1"),
        (0.5, "0.5"),
        ("five", "'five'"),
        (True, "True"),
        (None, "NoneType"),
        ([1], "list"),
        (object(), "object"),
        (f"Bearer {KEY}", "'Bearer [redacted]'"),
    ],
)
def test_at_says_what_was_expected_what_came_and_where(received, shown):
    error = InvalidError.at("policy.attempts", "an integer above 0", received)
    assert str(error) == f"CONFIG_OPTION_INVALID  policy.attempts: expected an integer above 0, got {shown}"
    assert error.fault.context == {"path": "policy.attempts", "expected": "an integer above 0", "received": shown}


def test_at_may_be_another_code():
    assert InvalidError.at("$", "x", 1, code="PROTO_INVALID_MESSAGE").fault.code == "PROTO_INVALID_MESSAGE"


class Inner(msgspec.Struct, tag_field="type", tag="inner"):
    count: int
    names: list[str] = []
    code: Annotated[str, msgspec.Meta(max_length=2)] = ""


@pytest.mark.parametrize(
    ("raw", "path", "expected", "received"),
    [
        (b'{"type":"inner","count":"x"}', "$.count", "int", "str"),
        (b'{"type":"inner","count":1,"names":["a",2]}', "$.names[1]", "str", "int"),
        (b'{"type":"inner"}', "$.count", "a value", "nothing"),
        (b"[]", "$", "object", "array"),
        (b'{"type":"inner","count":1,"code":"abc"}', "$.code", "str of length <= 2", "something else"),
        (b'{"type":"other","count":1}', "$.type", "one of the known values", "'other'"),
        (b'{"type":"over - at sea","count":1}', "$.type", "one of the known values", "'over - at sea'"),
    ],
)
def test_from_msgspec_keeps_what_msgspec_said(raw, path, expected, received):
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(raw, type=Inner)
    error = InvalidError.from_msgspec(refused.value)
    assert error.fault.context == {"path": path, "expected": expected, "received": received}
    assert error.fault.message == f"{path}: expected {expected}, got {received}"


def test_from_msgspec_masks_a_secret_that_stood_in_a_tag():
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(f'{{"type":"{KEY}","count":1}}'.encode(), type=Inner)
    error = InvalidError.from_msgspec(refused.value, code="PROTO_INVALID_MESSAGE")
    assert KEY not in str(error)
    assert KEY not in repr(error.fault.context)
    assert error.fault.code == "PROTO_INVALID_MESSAGE"


@pytest.mark.parametrize("name", ["DeadlineError", "BudgetError", "CircuitOpenError"])
def test_a_classes_name_is_a_name_of_its_code(name):
    leaf = {cls.__name__: cls for cls in LEAVES}[name]
    assert resolve(name).code == leaf.code
