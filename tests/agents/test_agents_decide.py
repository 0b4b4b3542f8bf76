"""The decisions of the loop, and how conversations are made shorter: properties that hold for every run."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Fault
from holdfast.agents.conversation import is_valid, shorten, size, summary_prompt, with_summary
from holdfast.agents.decide import AskAgain, Bounds, EndRun, FinishRun, RunRecord, RunTools, after_reply, before_request
from holdfast.providers.messages import Assistant, Message, Reply, ToolCall, ToolResult, User

names = st.sampled_from(["read", "write"])
arguments = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2)
calls = st.lists(st.builds(lambda n, a: (n, a), names, arguments), max_size=3)
texts = st.sampled_from(["", " ", "word", "a longer answer"])
stops = st.sampled_from(["end", "tools", "length", "refused", "other"])
codes = st.sampled_from(["TOOL_EXECUTION_FAILED", "TOOL_TIMEOUT", None])


def reply_of(text: str, called: list[tuple[str, dict[str, Any]]], stop: Any) -> Reply:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=given_) for n, (name, given_) in enumerate(called))
    return Reply(text=text, calls=made, stop=stop)


def play(turns: list[tuple[Reply, list[str | None]]], bounds: Bounds) -> tuple[Any, int, int]:
    """Run the decisions over scripted replies; return the last decision, the replies used and the calls run."""
    record, ran = RunRecord(), 0
    for reply, outcomes in turns:
        ended = before_request(record, bounds)
        if ended is not None:
            return ended, record.turns, ran
        record.add_reply(reply)
        decision = after_reply(reply, record, bounds)
        if not isinstance(decision, RunTools):
            return decision, record.turns, ran
        for place, call in enumerate(decision.calls):
            blocked = decision.blocked.get(place)
            code: Any = outcomes[place % len(outcomes)] if outcomes else None
            fault = blocked or (None if code is None else Fault.of(code))
            ran += blocked is None
            record.add_result(call, str(code), fault, is_run=blocked is None)
        record.tool_calls += len(decision.calls) - len(decision.blocked)
        record.end_turn()
    return None, record.turns, ran


runs = st.lists(st.tuples(st.builds(reply_of, texts, calls, stops), st.lists(codes, max_size=3)), max_size=30)


@given(runs, st.integers(1, 8), st.none() | st.integers(0, 6))
def test_no_run_exceeds_its_bounds(turns: Any, max_turns: int, max_calls: int | None):
    _, used, ran = play(turns, Bounds(max_turns=max_turns, max_tool_calls=max_calls))
    assert used <= max_turns
    assert max_calls is None or ran <= max_calls


@given(runs)
def test_the_same_replies_give_the_same_decisions(turns: Any):
    assert play(turns, Bounds()) == play(turns, Bounds())


@given(texts, calls, stops)
def test_an_answer_is_finished_only_if_it_has_text_and_was_not_cut_or_refused(text: str, called: Any, stop: Any):
    reply, record = reply_of(text, called, stop), RunRecord()
    record.add_reply(reply)
    decision = after_reply(reply, record, Bounds())
    if isinstance(decision, FinishRun):
        assert text.strip()
        assert not called
        assert stop in ("end", "tools")
    if isinstance(decision, RunTools):
        assert decision.calls == reply.calls
        assert stop != "refused"


@given(st.integers(1, 5), st.integers(0, 9))
def test_a_call_that_fails_in_one_way_runs_at_most_that_often_and_is_told_once(most: int, more: int):
    reply = reply_of("", [("read", {"a": 1})], "tools")
    turns = [(reply, ["TOOL_TIMEOUT"])] * (most + more)
    decision, used, ran = play(turns, Bounds(max_turns=100, same_failure=most, no_progress=None))
    assert ran == min(most, most + more)
    if more >= 2:
        assert isinstance(decision, EndRun)
        assert decision.fault.code == "TASK_HALTED"
        assert len(decision.fault.context["errors"]) == most
        # The call that is not run, and the one that ends the run.
        assert used == most + 2


@given(st.integers(0, 4), st.integers(0, 9))
def test_a_wrong_form_is_asked_for_again_a_bounded_number_of_times(reasks: int, wrong: int):
    def check(reply: Reply) -> Any:
        raise ValueError("not a number")

    record, again = RunRecord(), 0
    for _ in range(wrong):
        reply = Reply(text="x")
        record.add_reply(reply)
        decision = after_reply(reply, record, Bounds(reasks=reasks, max_turns=100), check)
        if isinstance(decision, EndRun):
            assert decision.fault.code == "PROVIDER_OUTPUT_INVALID"
            break
        assert isinstance(decision, AskAgain)
        assert "not a number" in decision.text
        record.reasks += 1
        again += 1
    assert again == min(reasks, wrong)


def test_results_that_change_are_progress():
    record, bounds = RunRecord(), Bounds(no_progress=2, max_turns=100)
    call = ToolCall(id="1", name="poll", arguments={})
    for n in range(10):
        record.add_result(call, f"{n} %", None)
        record.end_turn()
        assert before_request(record, bounds) is None
    for _ in range(2):
        assert before_request(record, bounds) is None
        record.add_result(call, "9 %", None)
        record.end_turn()
    assert before_request(record, bounds) is not None


# --- conversations ---


def conversation(sizes: list[tuple[int, int, int]]) -> tuple[Message, ...]:
    """A valid conversation: a request, then answers with calls and results, sometimes another request."""
    messages: list[Message] = [User(text="first")]
    for n, (text, results, result) in enumerate(sizes):
        made = tuple(ToolCall(id=f"{n}.{m}", name="read", arguments={}) for m in range(results))
        messages.append(Assistant(text="t" * text or "t", calls=made))
        messages += [ToolResult(id=call.id, text="r" * result) for call in made]
        if not made:
            messages.append(User(text=f"more {n}"))
    return tuple(messages)


conversations = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 6000)), min_size=0, max_size=12
).map(conversation)


@given(conversations, st.data())
def test_G11_a_shortened_conversation_is_valid_shorter_and_keeps_what_must_stay(messages: Any, data: Any):
    requests = [n for n, message in enumerate(messages) if isinstance(message, User)]
    prompt = data.draw(st.sampled_from(requests))
    assert is_valid(messages)
    short = shorten(messages, prompt)
    if short is None:
        return
    assert is_valid(short.messages)
    assert size(short.messages) < size(messages)
    assert short.messages[0] == messages[0]
    assert messages[prompt] in short.messages
    last = max(n for n, message in enumerate(messages) if not isinstance(message, ToolResult))
    assert short.messages[-1].__class__ is messages[-1].__class__
    assert messages[last] in short.messages
    if short.dropped:
        told = with_summary(short, "the summary")
        assert is_valid(told)
        assert sum("the summary" in message.text for message in told) == 1
        assert summary_prompt(short.dropped)


@given(conversations)
def test_a_conversation_without_one_of_its_results_is_not_valid(messages: Any):
    places = [n for n, message in enumerate(messages) if isinstance(message, ToolResult)]
    for place in places:
        assert not is_valid(messages[:place] + messages[place + 1 :])
        assert not is_valid((*messages[: place + 1], messages[place], *messages[place + 1 :]))
