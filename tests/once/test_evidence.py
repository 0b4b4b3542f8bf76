"""The closed list of what shows that a call did not happen."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl

import httpx
import pytest

from holdfast import fault_of
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.faults.fault import Attempt
from holdfast.once.evidence import REJECTING, Ending, evidence_of
from holdfast.runtime.failures.evidence import evidence_in
from holdfast.tools import ProcessError, ToolError, run
from holdfast.tools.http import HTTPResponse, fault_of_response

REQUEST = httpx.Request("POST", "https://bank.test/payments")


def answered(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def evidence(error: Exception) -> str:
    return evidence_in(error, fault_of(error))


@pytest.mark.parametrize("status", sorted(REJECTING))
def test_a_status_that_promises_that_nothing_was_done_is_evidence(status: int) -> None:
    assert evidence(answered(status)) == f"status-{status}"


def test_a_503_that_says_when_to_come_back_is_evidence() -> None:
    response = httpx.Response(503, headers={"retry-after": "2"}, request=REQUEST)
    assert evidence(httpx.HTTPStatusError("no", request=REQUEST, response=response)) == "status-503"


@pytest.mark.parametrize("status", [408, 409, 412, 424, 425, 499, 500, 501, 502, 503, 504, 520, 529])
def test_any_other_status_is_none(status: int) -> None:
    assert evidence(answered(status)) == ""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection-refused"),
        (httpx.ConnectError("[Errno 111] Connection refused"), "connection-refused"),
        (httpx.ConnectTimeout("slow"), "not-connected"),
        (httpx.ConnectError("All connection attempts failed"), "not-connected"),
        (httpx.PoolTimeout("all in use"), "no-connection-free"),
        (socket.gaierror(-2, "Name or service not known"), "name-not-resolved"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "tls-failed"),
        (HoldfastError(Fault.of("CIRCUIT_OPEN")), "rejected-by-us"),
        (HoldfastError(Fault.of("SYS_BULKHEAD_FULL")), "rejected-by-us"),
        (HoldfastError(Fault.of("TOOL_FORBIDDEN")), "rejected-by-tool"),
        (InvalidError.at("n", "a number", "x", "TOOL_INPUT_INVALID"), "rejected-by-tool"),
        (ToolError("no such product"), "rejected-by-tool"),
        (HoldfastError(Fault.of("SYS_TIMEOUT", maybe_executed=False)), "known"),
    ],
)
def test_what_was_not_sent_or_was_rejected_is_evidence(error: Exception, name: str) -> None:
    assert evidence(error) == name


@pytest.mark.parametrize(
    "error",
    [
        KeyError("id"),
        ValueError("x"),
        TypeError("x"),
        RuntimeError("x"),
        AssertionError("x"),
        json.JSONDecodeError("x", "y", 0),
        FileNotFoundError(2, "No such file"),
        PermissionError(13, "Permission denied"),
        TimeoutError(),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        httpx.ReadTimeout("slow"),
        httpx.WriteTimeout("slow"),
        ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"),
        HoldfastError(Fault.of("TOOL_EXECUTION_FAILED")),
        HoldfastError(Fault.of("SYS_DEADLINE_EXCEEDED")),
        # The other tasks of the group may have worked.
        ExceptionGroup("x", [ConnectionRefusedError(111, "refused")]),
        # Words are no evidence: nobody knows what they are about.
        RuntimeError("paid, but the receipt service said 404 not found"),
        RuntimeError("connection refused"),
        ValueError("HTTP 429 Too many requests"),
    ],
    ids=repr,
)
def test_everything_else_is_none(error: Exception) -> None:
    assert evidence(error) == ""


def test_a_failure_that_the_body_had_handled_is_no_evidence() -> None:
    def pay() -> None:
        try:
            raise httpx.ConnectTimeout("the first way is closed")
        except httpx.ConnectTimeout:
            raise ConnectionResetError(104, "the second way was cut") from None

    with pytest.raises(ConnectionResetError) as caught:
        pay()
    assert evidence(caught.value) == ""


def test_the_cause_of_an_error_is_evidence() -> None:
    class PaymentError(Exception):
        pass

    def pay() -> None:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except ConnectionRefusedError as refused:
            raise PaymentError("bank") from refused

    with pytest.raises(PaymentError) as caught:
        pay()
    assert evidence(caught.value) == "connection-refused"


@pytest.mark.parametrize(
    ("codes", "name"),
    [
        (("CONN_REFUSED", "CONN_REFUSED"), "connection-refused"),
        (("CIRCUIT_OPEN", "CONN_REFUSED"), "connection-refused"),
        (("CONN_RESET", "CONN_REFUSED"), ""),
        (("PROVIDER_UNAVAILABLE", "CONN_REFUSED"), ""),
    ],
)
def test_each_attempt_of_a_call_must_show_it(codes: tuple[str, ...], name: str) -> None:
    attempts = tuple(Attempt(number=n, code=code) for n, code in enumerate(codes, 1))  # type: ignore[arg-type]
    assert evidence_of(Fault.of("CONN_REFUSED").with_attempts(attempts), Ending()) == name


def test_a_function_that_was_not_entered_did_nothing() -> None:
    assert evidence_of(fault_of(TypeError("missing 1 argument")), Ending(entered=False)) == "not-called"


@pytest.mark.parametrize(("status", "name"), [(404, "status-404"), (409, ""), (503, "")])
def test_the_status_of_a_service_decides_whatever_code_it_has(status: int, name: str) -> None:
    fault = fault_of_response(HTTPResponse(url="https://bank.test", status=status, headers={}, body=b"no"), 0.0)
    assert fault is not None
    assert evidence(HoldfastError(fault)) == name


def test_what_a_program_printed_is_no_evidence() -> None:
    async def main() -> None:
        with pytest.raises(ProcessError) as caught:
            await run(["bash", "-c", "echo paid; echo 'cat: receipt: Permission denied' >&2; exit 1"])
        assert evidence(caught.value) == ""
        with pytest.raises(ProcessError) as caught:
            await run(["no-such-program-at-all"])
        assert evidence(caught.value) == "rejected-by-tool"

    asyncio.run(main())
