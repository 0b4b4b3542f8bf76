"""Actors that take messages, and their supervisor: the responses to the letter."""

from __future__ import annotations

import asyncio

import pytest
from actors_kit import Stage

from holdfast import Err, Fault, Ok
from holdfast.actors.messages import (
    Errors,
    Message,
    MessageActor,
    MessageSupervisor,
    UnexpectedFailure,
    ValidationError,
)
from holdfast.faults import InvalidError


class Task(MessageActor):
    """Has the types of messages that the specification lists."""

    made = 0

    def __init__(self, name: str = "task-1") -> None:
        super().__init__(name)
        type(self).made += 1
        self.notes: list[str] = []
        self.stopped = False

    async def stop(self) -> None:
        self.stopped = True

    async def on_update(self, payload):
        self.notes.append(payload)
        return list(self.notes)

    def on_get(self, payload):
        return {"goal": "ship"} if payload is None else payload

    async def on_eval(self, payload):
        raise payload

    async def on_wait(self, payload):
        await asyncio.sleep(payload)

    on_observe = on_start = on_spawn = on_complete = on_block = on_get


def message(kind: str, payload=None) -> Message:
    return Message(id="m-1", type=kind, payload=payload)


def on_stage(main, **options):
    stage = Stage()

    async def play():
        async with MessageSupervisor(runtime=stage.runtime, **options) as supervisor:
            await supervisor.supervise(Task)
            return await main(supervisor, stage)

    return stage.run(play())


def without_duration(response):
    metadata = response.pop("metadata", {})
    assert metadata.pop("durationMs", 0) >= 0
    assert not metadata
    return response


def test_S4_6_a_success_has_its_data_and_how_long_it_took():
    async def main(supervisor, _):
        return await supervisor.send("task-1", message("get"))

    response = on_stage(main)
    assert set(response["metadata"]) == {"durationMs"}
    assert without_duration(response) == {"success": True, "data": {"goal": "ship"}}


def test_S4_17_an_unknown_type_lists_the_supported_ones_and_restarts_nothing():
    async def main(supervisor, _):
        first = supervisor.get("task-1")
        for _ in range(100):
            response = await supervisor.send("task-1", message("juggle"))
        return response, supervisor.get("task-1") is first

    response, same = on_stage(main)
    assert same
    assert without_duration(response) == {
        "success": False,
        "error": {
            "type": "validation",
            "code": "UNKNOWN_MESSAGE_TYPE",
            "message": "Task does not support message type: juggle",
            "retryable": False,
            "context": {
                "supportedTypes": sorted(
                    ["get", "observe", "update", "start", "spawn", "eval", "complete", "block", "wait"]
                ),
                "receivedType": "juggle",
            },
        },
    }


def test_S4_14_an_unknown_actor():
    async def main(supervisor, _):
        return await supervisor.send("nobody", message("get"))

    assert on_stage(main) == {
        "success": False,
        "error": {
            "type": "permanent",
            "code": "ACTOR_NOT_FOUND",
            "message": "Actor nobody not found",
            "retryable": False,
        },
    }


def crashed(count: int) -> dict:
    return {
        "success": False,
        "error": {
            "type": "fatal",
            "code": "ACTOR_CRASHED",
            "message": "Actor task-1 crashed: state is lost",
            "retryable": False,
            "context": {"restartCount": count},
        },
    }


GAVE_UP = {
    "success": False,
    "error": {
        "type": "fatal",
        "code": "MAX_RESTARTS_EXCEEDED",
        "message": "Actor task-1 failed 3 times in 60000ms",
        "retryable": False,
        "context": {"originalError": "state is lost"},
    },
}


def test_S4_14_a_crash_makes_a_new_actor_and_the_fourth_in_the_window_removes_it():
    async def main(supervisor, _):
        responses = []
        for _ in range(4):
            await supervisor.send("task-1", message("update", "note"))
            actor = supervisor.get("task-1")
            responses.append(await supervisor.send("task-1", message("eval", RuntimeError("state is lost"))))
            assert supervisor.get("task-1") is not actor
            if supervisor.get("task-1") is not None:
                # A new instance with fresh state, made by the factory.
                assert supervisor.get("task-1").notes == []
        return responses, await supervisor.send("task-1", message("get")), supervisor.ids

    responses, later, ids = on_stage(main)
    assert [without_duration(each) for each in responses] == [crashed(1), crashed(2), crashed(3), GAVE_UP]
    assert later["error"]["code"] == "ACTOR_NOT_FOUND"
    assert ids == []


def test_S4_14_restarts_outside_of_the_window_are_forgotten():
    async def main(supervisor, stage):
        counts = []
        for seconds in (0, 30, 29.9, 0.1, 30, 100):
            stage.clock.advance(seconds)
            response = await supervisor.send("task-1", message("eval", RuntimeError("state is lost")))
            counts.append(response["error"]["context"]["restartCount"])
        return counts

    # At 60 s the restart of 0 s is exactly as old as the window: it is forgotten. So is that of 30 s at 90 s.
    assert on_stage(main) == [1, 2, 3, 3, 3, 1]


@pytest.mark.parametrize(
    "error", [SystemExit(1), GeneratorExit(), BaseException("x"), asyncio.CancelledError(), TimeoutError("inner")]
)
def test_send_never_raises_whatever_the_actor_does(error):
    async def main(supervisor, _):
        return await supervisor.send("task-1", message("eval", error)), await supervisor.send("task-1", message("get"))

    response, later = on_stage(main)
    assert response["error"]["code"] == "ACTOR_CRASHED"
    assert later["success"]


def test_a_cancelled_sender_is_cancelled_and_the_actor_is_not_restarted():
    async def main(supervisor, _):
        actor = supervisor.get("task-1")
        sending = asyncio.ensure_future(supervisor.send("task-1", message("wait", 60)))
        await asyncio.sleep(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        return supervisor.get("task-1") is actor

    assert on_stage(main)


def test_what_is_no_message_is_rejected_as_invalid():
    async def main(supervisor, _):
        return await supervisor.send("task-1", {"type": "get"})

    response = on_stage(main)
    assert response["error"]["code"] == "INVALID_MESSAGE"
    assert response["error"]["message"] == "Message payload is invalid"


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (
            Errors.transient("NETWORK_TIMEOUT", "no answer", {"host": "a"}),
            {
                "type": "transient",
                "code": "NETWORK_TIMEOUT",
                "message": "no answer",
                "retryable": True,
                "context": {"host": "a"},
            },
        ),
        (
            ValidationError(field="path", message="must be relative"),
            {
                "type": "validation",
                "code": "VALIDATION_ERROR",
                "message": "must be relative",
                "retryable": False,
                "context": {"field": "path"},
            },
        ),
        (
            Err(Fault.of("CIRCUIT_OPEN")),
            {
                "type": "transient",
                "code": "CIRCUIT_OPEN",
                "message": "Service temporarily unavailable",
                "retryable": False,
            },
        ),
    ],
)
def test_S4_8_an_expected_failure_is_returned_and_restarts_nothing(payload, error):
    async def main(supervisor, _):
        actor = supervisor.get("task-1")
        return await supervisor.send("task-1", message("get", payload)), supervisor.get("task-1") is actor

    response, same = on_stage(main)
    assert same
    assert without_duration(response) == {"success": False, "error": error}


def test_a_response_or_an_ok_that_a_handler_returns_is_the_response():
    async def main(supervisor, _):
        whole = {"success": True, "data": 1, "metadata": {"costUsd": 0.01}}
        return [await supervisor.send("task-1", message("get", one)) for one in (whole, Ok(value=2))]

    whole, ok = on_stage(main)
    assert whole["metadata"]["costUsd"] == 0.01
    assert set(whole["metadata"]) == {"costUsd", "durationMs"}
    assert without_duration(ok) == {"success": True, "data": 2}


def test_S4_4_an_unexpected_failure_is_the_supervisors_business():
    failure = UnexpectedFailure("database", "connection lost")
    assert failure.document == {"type": "failure", "cause": "database", "message": "connection lost"}
    with pytest.raises(InvalidError, match=r"failure\.cause"):
        UnexpectedFailure("weather", "rain")

    async def main(supervisor, _):
        return await supervisor.send("task-1", message("eval", failure))

    response = on_stage(main)
    assert response["error"]["message"] == "Actor task-1 crashed: connection lost"


def test_one_for_one_keeps_the_others_and_one_for_all_makes_all_anew():
    async def main(supervisor, _):
        await supervisor.supervise(lambda: Task("task-2"))
        other = supervisor.get("task-2")
        await supervisor.send("task-1", message("eval", RuntimeError("x")))
        return supervisor.get("task-2") is other, other.stopped

    assert on_stage(main) == (True, False)
    assert on_stage(main, strategy="one-for-all") == (False, True)


def test_two_that_crash_at_once_under_one_for_all_do_not_wait_for_each_other():
    class Later(Task):
        async def on_eval(self, payload):
            await asyncio.sleep(1)
            raise RuntimeError(payload)

    async def main(supervisor, _):
        for name in ("a", "b"):
            await supervisor.supervise(lambda name=name: Later(name))
        sent = [supervisor.send(name, message("eval", name)) for name in ("a", "b")]
        return [response["error"]["code"] for response in await asyncio.gather(*sent)]

    assert on_stage(main, strategy="one-for-all") == ["ACTOR_CRASHED", "ACTOR_CRASHED"]


def test_a_factory_that_fails_counts_as_another_crash_and_nothing_loops():
    made = []

    def factory():
        made.append(1)
        if len(made) > 1:
            raise RuntimeError("no such model")
        return Task("task-2")

    async def main(supervisor, _):
        await supervisor.supervise(factory)
        return await supervisor.send("task-2", message("eval", RuntimeError("x")))

    response = on_stage(main)
    assert response["error"]["code"] == "MAX_RESTARTS_EXCEEDED"
    assert response["error"]["context"] == {"originalError": "no such model"}
    assert len(made) == 4


def test_messages_to_one_actor_wait_for_their_turn_and_one_that_is_removed_meanwhile_is_not_found():
    async def main(supervisor, _):
        first = asyncio.ensure_future(supervisor.send("task-1", message("eval", RuntimeError("x"))))
        second = asyncio.ensure_future(supervisor.send("task-1", message("get")))
        return [(await one)["error"]["code"] for one in (first, second)]

    assert on_stage(main, max_restarts=0) == ["MAX_RESTARTS_EXCEEDED", "ACTOR_NOT_FOUND"]


def test_a_message_that_takes_too_long_is_a_transient_timeout():
    async def main(supervisor, _):
        return await supervisor.send("task-1", message("wait", 60)), await supervisor.send("task-1", message("get"))

    response, later = on_stage(main, timeout_ms=100)
    assert response["error"] == {
        "type": "transient",
        "code": "TIMEOUT",
        "message": 'Operation "wait" timed out after 100ms',
        "retryable": True,
    }
    assert later["success"]


def test_misuse_is_rejected():
    async def main(supervisor, _):
        with pytest.raises(InvalidError, match="an id that no other actor has"):
            await supervisor.supervise(Task)
        with pytest.raises(InvalidError, match="a function that makes an actor"):
            await supervisor.supervise(Task("x"))
        with pytest.raises(InvalidError, match="with `id` and `send`"):
            await supervisor.supervise(object)

    on_stage(main)
    for options in ({"max_restarts": -1}, {"window_ms": 0}, {"strategy": "all"}, {"timeout_ms": 0}):
        with pytest.raises(InvalidError, match=r"supervisor\."):
            MessageSupervisor(**options)


def test_leaving_the_block_stops_the_actors_even_if_one_hook_raises():
    class Stubborn(Task):
        async def stop(self):
            raise RuntimeError("no")

    kept = []

    async def main(supervisor, _):
        await supervisor.supervise(lambda: Stubborn("task-2"))
        kept.append(supervisor.get("task-1"))

    on_stage(main)
    assert kept[0].stopped


def test_an_actor_may_stop_its_own_supervisor():
    async def main(supervisor, _):
        class Last(Task):
            async def on_eval(self, payload):
                await supervisor.stop()
                return "ended"

        await supervisor.supervise(lambda: Last("task-2"))
        first = supervisor.get("task-1")
        response = await supervisor.send("task-2", message("eval"))
        return response["data"], supervisor.ids, first.stopped

    assert on_stage(main) == ("ended", [], True)


def test_an_actor_that_crashes_while_it_is_stopped_is_not_made_again():
    class Untidy(Task):
        async def on_wait(self, payload):
            try:
                await asyncio.sleep(payload)
            except asyncio.CancelledError:
                raise RuntimeError("cleanup failed") from None

    async def main(supervisor, _):
        await supervisor.supervise(lambda: Untidy("task-2"))
        made = Untidy.made
        sending = asyncio.ensure_future(supervisor.send("task-2", message("wait", 60)))
        await asyncio.sleep(1)
        await supervisor.stop()
        return (await sending)["error"]["code"], Untidy.made - made, supervisor.ids

    assert on_stage(main) == ("ACTOR_CRASHED", 0, [])
