"""The Bash actor: real shells, limits that hold, nothing left running."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from holdfast.actors.bash import BashActor
from holdfast.actors.messages import Message, MessageSupervisor
from holdfast.faults import InvalidError
from holdfast.testing import VirtualClock, run


def exec_(payload) -> Message:
    return Message(id="m-1", type="exec", payload=payload)


def sent(payload, **options):
    async def main():
        return await BashActor("bash", **options).send(exec_(payload))

    return asyncio.run(main())


def alive(marker: str) -> list[str]:
    """Return the living processes whose command line has a marker."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found


def test_S4_15_a_command_returns_its_output_and_exit_code():
    response = sent("echo hi; echo oops >&2")
    assert response["success"]
    assert response["data"] == {"stdout": "hi\n", "stderr": "oops\n", "exitCode": 0}
    assert response["metadata"]["durationMs"] >= 0


def test_S4_15_a_command_that_fails_has_its_output_and_exit_code_in_data():
    response = sent("echo hi; echo broken >&2; exit 3")
    assert not response["success"]
    assert response["data"] == {"stdout": "hi\n", "stderr": "broken\n", "exitCode": 3}
    assert not response["error"]["retryable"]


def test_A74_S4_20_a_command_that_takes_too_long_is_a_transient_timeout_and_is_gone():
    began = time.monotonic()
    response = sent("sleep 10.0740", timeout=0.1)
    assert time.monotonic() - began < 5
    assert response["error"] == {
        "type": "transient",
        "code": "TIMEOUT",
        "message": 'Operation "sleep 10.0740" timed out after 100ms',
        "retryable": True,
    }
    assert not alive("sleep 10.0740")


def test_S4_13_a_message_may_bring_its_own_limit_and_the_defaults_are_the_documents():
    response = sent({"command": "sleep 10.0741", "timeoutMs": 100})
    assert response["error"]["code"] == "TIMEOUT"
    actor = BashActor("bash")
    assert (actor._timeout, actor._stream_timeout) == (30, 300)


def test_A75_a_background_job_does_not_keep_the_answer_and_is_killed():
    began = time.monotonic()
    response = sent("sleep 30.0750 & echo hi; exit 0")
    assert time.monotonic() - began < 5
    assert response["data"]["stdout"] == "hi\n"
    assert not alive("sleep 30.0750")


def test_A78_a_program_that_is_missing_fails_at_once_and_for_good():
    began = time.monotonic()
    response = sent("no-such-program-78")
    assert time.monotonic() - began < 5
    assert response["error"]["type"] in ("permanent", "validation")
    assert not response["error"]["retryable"]
    assert response["data"]["exitCode"] == 127


def test_A79_a_command_that_ignores_sigterm_is_killed(tmp_path):
    deaf, clock = tmp_path / "deaf", VirtualClock()

    def appears() -> None:
        while not deaf.exists():
            time.sleep(0.005)

    async def main():
        command = f"trap '' TERM; touch {deaf}; while true; do sleep 0.0790; done"
        response = asyncio.create_task(BashActor("bash", timeout=0.2).send(exec_(command)))
        # The clock stands still until the shell ignores the signal.
        await asyncio.to_thread(appears)
        return await response

    assert run(main(), clock=clock)["error"]["code"] == "TIMEOUT"
    assert not alive("sleep 0.0790")
    assert clock.monotonic() >= 5, "it had the time to end by itself"


def test_A82_a_flood_of_output_is_cut_and_the_command_ends():
    response = sent("yes eighty-two", output_cap=100_000)
    assert not response["success"]
    assert response["error"]["code"] == "TOOL_OUTPUT_TOO_LARGE"
    assert len(response["data"]["stdout"]) <= 1_100_000
    assert not alive("yes eighty-two")


@pytest.mark.parametrize("payload", [None, "", "  ", 3, {}, {"command": ""}, {"command": "x", "timeoutMs": 0}, "a\0b"])
def test_a_payload_that_is_no_command_is_rejected_and_nothing_runs(payload):
    assert sent(payload)["error"]["code"] == "INVALID_MESSAGE"


def test_S4_17_another_type_lists_what_is_supported():
    async def main():
        return await BashActor("bash").send(Message(id="m", type="juggle"))

    error = asyncio.run(main())["error"]
    assert error["code"] == "UNKNOWN_MESSAGE_TYPE"
    assert error["context"] == {"supportedTypes": ["exec"], "receivedType": "juggle"}


def test_a_cancel_ends_what_runs_and_its_response_says_so():
    async def main():
        actor = BashActor("bash")
        sending = asyncio.ensure_future(actor.send(exec_("sleep 10.0990")))
        await asyncio.sleep(0.3)
        count = await actor.cancel()
        return count, await sending

    count, response = asyncio.run(main())
    assert count == 1
    assert not response["success"]
    assert response["error"]["code"] == "TOOL_CANCELLED"
    assert not alive("sleep 10.0990")


def test_a_cancelled_caller_leaves_no_process():
    async def main():
        sending = asyncio.ensure_future(BashActor("bash").send(exec_("sleep 10.0991")))
        await asyncio.sleep(0.3)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(main())
    assert not alive("sleep 10.0991")


async def streamed(actor, payload, stop_after=None):
    events = []
    async with actor.stream(exec_(payload)) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == stop_after:
                break
    return events


def test_a_stream_gives_the_output_as_it_comes_and_ends_with_the_result():
    events = asyncio.run(streamed(BashActor("bash"), "echo one; sleep 0.2; echo two >&2"))
    assert [event["type"] for event in events] == ["stdout", "stderr", "result"]
    assert events[0]["data"]["text"] == "one\n"
    assert events[-1]["data"]["response"]["data"] == {"stdout": "one\n", "stderr": "two\n", "exitCode": 0}
    assert all(event["timestamp"] > 1_000_000_000 for event in events)


def test_A77_a_long_line_arrives_whole():
    events = asyncio.run(streamed(BashActor("bash"), "head -c 204800 /dev/zero | tr '\\0' x; echo"))
    text = "".join(event["data"]["text"] for event in events if event["type"] == "stdout")
    assert text == "x" * 204_800 + "\n"


def test_S4_18_a_silent_stream_is_ended_by_a_timer_with_an_error_event():
    actor = BashActor("bash", stream_timeout=0.3)
    events = asyncio.run(streamed(actor, "echo one; sleep 10.1800"))
    assert [event["type"] for event in events] == ["stdout", "error"]
    error = events[-1]["data"]["error"]
    assert (error["type"], error["code"], error["retryable"]) == ("transient", "STREAM_TIMEOUT", True)
    assert error["message"] == "Stream exceeded timeout of 300ms"
    assert error["context"]["durationMs"] >= 300
    assert events[-1]["data"]["response"]["data"]["stdout"] == "one\n"
    assert not alive("sleep 10.1800")


def test_A81_leaving_a_stream_early_ends_the_command_at_once():
    events = asyncio.run(streamed(BashActor("bash"), "while true; do echo 81; sleep 0.0810; done", stop_after=1))
    assert len(events) == 1
    assert not alive("sleep 0.0810")


def test_a_stream_of_a_wrong_message_or_without_its_block_is_rejected():
    events = asyncio.run(streamed(BashActor("bash"), ""))
    assert [event["data"]["error"]["code"] for event in events] == ["INVALID_MESSAGE"]
    with pytest.raises(TypeError, match="async with"):
        iterator = BashActor("bash").stream(exec_("true"))
        iterator.__aiter__()


def test_under_a_supervisor_it_answers_and_its_commands_end_with_it():
    async def main():
        async with MessageSupervisor() as supervisor:
            await supervisor.supervise(lambda: BashActor("bash"))
            response = await supervisor.send("bash", exec_("echo hi"))
            sending = asyncio.ensure_future(supervisor.send("bash", exec_("sleep 10.0992")))
            await asyncio.sleep(0.3)
        return response, await sending

    response, cut = asyncio.run(main())
    assert response["data"]["stdout"] == "hi\n"
    assert not cut["success"]
    assert not alive("sleep 10.0992")


@pytest.mark.parametrize("given", [{"timeout": 0}, {"stream_timeout": -1}, {"idle": 0}, {"output_cap": 0}])
def test_wrong_options_are_rejected(given):
    with pytest.raises(InvalidError, match=r"bash\."):
        BashActor("bash", **given)
