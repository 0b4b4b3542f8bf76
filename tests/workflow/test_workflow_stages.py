"""The pure machines of stages: the phases of one execution, and the way through the stages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Fault, HoldfastError, InvalidError
from holdfast.workflow.stage_lifecycle import PHASES, ActEnded, Enter, Lifecycle, PhaseEnded, StageEnded
from holdfast.workflow.stage_plan import (
    END,
    AbortChain,
    BranchEnded,
    FinishChain,
    Go,
    Graph,
    PlanNode,
    PutOff,
    RunSiblings,
    RunStage,
    StageChain,
)

FAULT = Fault.of("PROVIDER_OVERLOADED")


def walk(lifecycle, ends):
    """Return the phases that were entered, and how the execution ended. `ends` has the end of a phase by (phase, attempt)."""
    entered, enter = [], lifecycle.start()
    while isinstance(enter, Enter):
        entered.append((enter.phase, enter.attempt))
        end = ends.get((enter.phase, enter.attempt))
        default = PhaseEnded(value=ActEnded()) if enter.phase == "Act" else PhaseEnded()
        enter = lifecycle.ended(default if end is None else end)
    return entered, enter


def phases(entered, attempt):
    return [phase for phase, number in entered if number == attempt]


def test_N2_5_a_stage_goes_through_its_seven_phases():
    entered, ended = walk(Lifecycle("plan", 3), {("Act", 1): PhaseEnded(value=ActEnded(value=7))})
    assert phases(entered, 1) == list(PHASES)
    assert len(entered) == 7
    assert (ended.outcome, ended.value, ended.attempts) == ("ok", 7, 1)


@pytest.mark.parametrize(("verdict", "outcome"), [("skip", "skip"), ("retry", "fail")])
def test_N2_5_a_gate_that_does_not_proceed_leaves_out_act_and_assert(verdict, outcome):
    entered, ended = walk(Lifecycle("plan", 1), {("CheckGate", 1): PhaseEnded(value=verdict)})
    assert phases(entered, 1) == ["Setup", "Init", "CheckGate", "Exit", "Next"]
    assert ended.outcome == outcome


def test_N2_5_retry_of_the_gate_begins_the_next_attempt_with_setup():
    entered, ended = walk(Lifecycle("plan", 2), {("CheckGate", 1): PhaseEnded(value="retry")})
    assert phases(entered, 1) == ["Setup", "Init", "CheckGate"]
    assert phases(entered, 2) == list(PHASES)
    assert (ended.outcome, ended.attempts) == ("ok", 2)


def test_N2_4_an_act_that_used_all_its_turns_is_made_again_and_is_no_error():
    capped = PhaseEnded(value=ActEnded(cap_hit=True, text="half"))
    entered, ended = walk(Lifecycle("plan", 2), {("Act", 1): capped})
    assert (ended.outcome, ended.attempts) == ("ok", 2)
    entered, ended = walk(Lifecycle("plan", 2), {("Act", 1): capped, ("Act", 2): capped})
    assert phases(entered, 2)[-2:] == ["Exit", "Next"]
    assert (ended.outcome, ended.fault.code) == ("fail", "TASK_STAGE_FAILED")
    assert ended.fault.context["reason"] == "Act used all its turns"
    assert ended.fault.partial.payload == "half"


def test_an_assert_of_its_own_decides_about_a_capped_act():
    ends = {("Act", 1): PhaseEnded(value=ActEnded(cap_hit=True)), ("Assert", 1): PhaseEnded(value="ok")}
    assert walk(Lifecycle("plan", 2), ends)[1].outcome == "ok"


def test_an_assert_that_fails_ends_the_stage_although_attempts_are_left():
    _, ended = walk(Lifecycle("plan", 5), {("Assert", 1): PhaseEnded(value="fail")})
    assert (ended.outcome, ended.attempts, ended.fault.code) == ("fail", 1, "TASK_STAGE_FAILED")


@pytest.mark.parametrize("phase", ["Setup", "Init", "CheckGate", "Act", "Assert"])
def test_S2_4_a_phase_that_fails_fails_the_attempt_and_the_next_one_begins_with_setup(phase):
    entered, ended = walk(Lifecycle("plan", 2), {(phase, 1): PhaseEnded(fault=FAULT)})
    assert phases(entered, 1)[-1] == phase
    assert phases(entered, 2) == list(PHASES)
    assert ended.outcome == "ok"
    _, ended = walk(Lifecycle("plan", 1), {(phase, 1): PhaseEnded(fault=FAULT)})
    assert ended.fault.context == {
        "stage": "plan",
        "attempts": 1,
        "reason": f"{phase} failed with PROVIDER_OVERLOADED: {FAULT.message}",
        "cause": "PROVIDER_OVERLOADED",
    }


@pytest.mark.parametrize("phase", ["Exit", "Next"])
def test_S2_5_a_failure_in_exit_or_next_is_terminal(phase):
    entered, ended = walk(Lifecycle("plan", 3), {(phase, 1): PhaseEnded(fault=FAULT)})
    assert len(entered) == 7
    assert (ended.outcome, ended.fault.context["cause"]) == ("fail", "PROVIDER_OVERLOADED")


@pytest.mark.parametrize("phase", ["Exit", "Next"])
def test_a_failure_in_exit_or_next_does_not_hide_why_the_stage_failed(phase):
    unknown = Fault.of("SYS_TIMEOUT", "no answer", maybe_executed=True)
    ends = {("Act", 1): PhaseEnded(fault=unknown, is_final=True), (phase, 1): PhaseEnded(fault=FAULT)}
    _, ended = walk(Lifecycle("pay", 3), ends)
    assert ended.fault.context["cause"] == "SYS_TIMEOUT"
    assert ended.fault.context[phase.lower()] == "PROVIDER_OVERLOADED"
    assert "Act failed with SYS_TIMEOUT: no answer. Then " + phase in ended.fault.message
    assert ended.fault.maybe_executed
    assert ended.is_final


def test_words_that_nobody_knows_are_rejected():
    for phase in ("CheckGate", "Assert"):
        with pytest.raises(InvalidError, match="one of"):
            walk(Lifecycle("plan", 1), {(phase, 1): PhaseEnded(value="perhaps")})


ENDS = st.one_of(
    st.just(PhaseEnded(fault=FAULT)),
    st.sampled_from(["proceed", "retry", "skip", "ok", "fail", None]).map(lambda word: PhaseEnded(value=word)),
)


@given(st.integers(1, 5), st.data())
def test_every_execution_ends_within_its_attempts_and_exits_once(most, data):
    lifecycle, entered = Lifecycle("plan", most), []
    enter = lifecycle.start()
    while isinstance(enter, Enter):
        entered.append((enter.phase, enter.attempt))
        end = data.draw(ENDS)
        words = {"CheckGate": ("proceed", "retry", "skip", None), "Assert": ("ok", "retry", "skip", "fail", None)}
        if enter.phase == "Act":
            end = end if end.fault is not None else PhaseEnded(value=ActEnded(cap_hit=end.value == "retry"))
        elif end.value not in words.get(enter.phase, (None,)):
            end = PhaseEnded()
        enter = lifecycle.ended(end)
    assert [phase for phase, _ in entered].count("Exit") == 1
    assert entered[-1] == ("Next", enter.attempts)
    assert 1 <= enter.attempts <= most
    for attempt in range(1, enter.attempts + 1):
        made = phases(entered, attempt)
        assert made == sorted(made, key=PHASES.index)
        assert made[0] == "Setup"
    assert (enter.fault is None) == (enter.outcome != "fail")


# --- the way through the stages ---


def graph(*nodes):
    return Graph([node if isinstance(node, PlanNode) else PlanNode(id=node) for node in nodes])


def ok(stage, plan=None):
    return StageEnded(stage=stage, outcome="ok", plan=plan)


def failed(stage, plan=None):
    return StageEnded(stage=stage, outcome="fail", fault=FAULT, plan=plan)


def code_of(call):
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.fault


FAN = Go(stages=("a", "b"), execution="parallel", join="merge")
FANNED = (PlanNode(id="split", leads_to=FAN), "a", "b", "merge", "done")


def test_stages_follow_the_list_until_its_end():
    chain = StageChain(graph("a", "b"))
    assert chain.start() == RunStage("a", 1)
    assert chain.stage_ended(ok("a")) == RunStage("b", 2)
    assert chain.stage_ended(ok("b")) == FinishChain()


def test_stages_that_a_parallel_plan_leads_to_are_not_in_the_way_of_the_list():
    chain = StageChain(graph("first", "a", "b", "merge", PlanNode(id="split", leads_to=FAN)))
    chain.start()
    assert chain.stage_ended(ok("first")) == RunStage("split", 2)


def test_next_leads_elsewhere_in_sequence_or_ends():
    chain = StageChain(graph("a", "b", "c", "d"))
    chain.start()
    assert chain.stage_ended(ok("a", ["d", "b"])) == RunStage("d", 2)
    assert chain.stage_ended(ok("d")) == RunStage("b", 3), "what a plan named comes before the list"
    assert chain.stage_ended(ok("b")) == RunStage("c", 4)
    assert chain.stage_ended(ok("c", END)) == FinishChain()


def test_a_plan_may_be_a_document_as_it_is_stored():
    chain = StageChain(graph(*FANNED))
    chain.start()
    plan = {"nextStages": ["a", "b"], "execution": "parallel", "join": "merge"}
    assert chain.stage_ended(ok("split", plan)) == RunSiblings(("a", "b"), "merge", 2)


@pytest.mark.parametrize(
    ("resolution", "kind"), [("skip", RunStage), ("retry-later", PutOff), ("abort-workflow", AbortChain)]
)
def test_S2_5_the_resolution_says_what_a_failed_stage_leads_to(resolution, kind):
    chain = StageChain(graph(PlanNode(id="a", resolution=resolution), "b"))
    chain.start()
    move = chain.stage_ended(failed("a"))
    assert isinstance(move, kind)
    assert getattr(move, "fault", FAULT) is FAULT
    assert move.stage == ("b" if resolution == "skip" else "a")


def test_S2_3_next_of_a_failed_stage_may_lead_to_a_repair_stage():
    chain = StageChain(graph(PlanNode(id="a", decides=True), "b", "repair"))
    chain.start()
    assert chain.stage_ended(failed("a", "repair")) == RunStage("repair", 2)
    assert chain.stage_ended(ok("repair", "a")) == RunStage("a", 3)


def test_N2_7_the_join_runs_after_all_siblings_ended_well():
    chain = StageChain(graph(*FANNED))
    assert chain.start() == RunStage("split", 1)
    move = chain.stage_ended(ok("split"))
    assert move == RunSiblings(("a", "b"), "merge", 2)
    assert chain.siblings_ended(move, [BranchEnded(stage="a"), BranchEnded(stage="b")]) == RunStage("merge", 3)
    assert chain.stage_ended(ok("merge")) == RunStage("done", 4)


def test_N2_7_a_failed_sibling_is_named_and_its_resolution_decides():
    ends = [BranchEnded(stage="b", outcome="fail", failed="b", fault=FAULT)]
    for resolution, kind in (("abort-workflow", AbortChain), ("retry-later", PutOff), ("skip", RunStage)):
        chain = StageChain(graph(FANNED[0], "a", PlanNode(id="b", resolution=resolution), "merge", "done"))
        chain.start()
        move = chain.siblings_ended(chain.stage_ended(ok("split")), ends)
        assert isinstance(move, kind)
        if resolution == "skip":
            assert move == RunStage("done", 3), "the join needs all siblings, so it is left out"
        else:
            assert (move.fault.code, move.fault.context["stage"]) == ("TASK_SIBLING_FAILED", "b")
            assert move.fault.context["cause"] == "PROVIDER_OVERLOADED"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Go(stages=("a",), execution="parallel", join="merge"), "1 stage named, at least 2 needed"),
        (Go(stages=(), execution="parallel", join="merge"), "0 stage named, at least 2 needed"),
        (Go(stages=("a", "nobody"), execution="parallel", join="merge"), "there is no stage 'nobody'"),
        (Go(stages=("a", "b"), execution="parallel"), "no join named"),
        (Go(stages=("a", "a"), execution="parallel", join="merge"), "a stage is named twice"),
        (Go(stages=("a", "merge"), execution="parallel", join="merge"), "merge is its own join"),
    ],
)
def test_N2_7_a_parallel_plan_that_cannot_run_is_rejected(plan, reason):
    fault = code_of(lambda: graph(PlanNode(id="split", leads_to=plan), "a", "b", "merge"))
    assert fault.code == "TASK_PARALLEL_INVALID"
    assert reason in fault.message
    chain = StageChain(graph(PlanNode(id="split", decides=True), "a", "b", "merge"))
    chain.start()
    assert code_of(lambda: chain.stage_ended(ok("split", plan))).code == "TASK_PARALLEL_INVALID"


def test_a_join_that_no_branch_leads_to_is_found_before_anything_runs():
    fault = code_of(lambda: graph("a", PlanNode(id="merge", is_join=True)))
    assert (fault.code, fault.context["stage"]) == ("TASK_JOIN_DANGLING", "merge")
    sequential = Go(stages=("a",), join="merge")
    assert code_of(lambda: graph(PlanNode(id="split", leads_to=sequential), "a", "merge")).code == "TASK_JOIN_DANGLING"


def test_a_join_that_is_reached_alone_does_not_run():
    chain = StageChain(graph(PlanNode(id="split", decides=True), "a", PlanNode(id="merge", is_join=True)))
    chain.start()
    assert code_of(lambda: chain.stage_ended(ok("split", "merge"))).code == "TASK_JOIN_VIOLATED"
    branch = StageChain(graph("split", "a", "b", "merge"), first="a", reserved=frozenset({"merge"}))
    branch.start()
    assert code_of(lambda: branch.stage_ended(ok("a", "merge"))).code == "TASK_JOIN_VIOLATED"


def test_a_sibling_that_was_skipped_does_not_count_as_done():
    chain = StageChain(graph(*FANNED))
    chain.start()
    move = chain.stage_ended(ok("split"))
    fault = code_of(
        lambda: chain.siblings_ended(move, [BranchEnded(stage="a"), BranchEnded(stage="b", outcome="skip")])
    )
    assert fault.code == "TASK_JOIN_VIOLATED"
    assert "b ended with skip" in fault.message


def test_a_branch_goes_on_where_its_own_next_leads_and_ends_there():
    branch = StageChain(graph(PlanNode(id="split", leads_to=FAN), "a", "b", "merge", "extra"), first="a")
    assert branch.start() == RunStage("a", 1)
    assert branch.stage_ended(ok("a", "extra")) == RunStage("extra", 2)
    assert branch.stage_ended(ok("extra")) == FinishChain()


def test_stages_that_lead_to_each_other_end_at_the_limit():
    chain = StageChain(graph(PlanNode(id="a", leads_to=Go(stages=("a",)))), limit=10)
    chain.start()

    def forever():
        while True:
            chain.stage_ended(ok("a"))

    assert code_of(forever).code == "TASK_LOOP_BOUND"
    assert chain.number == 10


def test_of_siblings_that_were_put_off_those_that_failed_begin_again_and_the_others_go_on():
    chain = StageChain(graph(FANNED[0], "a", PlanNode(id="b", resolution="retry-later"), "merge", "done"))
    chain.start()
    move = chain.stage_ended(ok("split"))
    assert [move.turn_of(place) for place in (0, 1)] == [2, 2]
    end = BranchEnded(stage="b", outcome="fail", failed="b", fault=FAULT)
    put_off = chain.siblings_ended(move, [end])
    move = chain.again(move, put_off.branches)
    assert (move.number, [move.turn_of(place) for place in (0, 1)]) == (3, [2, 3])
    put_off = chain.siblings_ended(move, [msgspec.structs.replace(end, failed_too=("a",))])
    move = chain.again(move, put_off.branches)
    assert (move.number, [move.turn_of(place) for place in (0, 1)]) == (4, [4, 4])


def test_branches_count_against_the_limit_of_the_whole_run():
    chain = StageChain(graph(*FANNED), limit=5)
    chain.start()
    move = chain.stage_ended(ok("split"))
    left, right = chain.branch(move, 0), chain.branch(move, 1)
    assert (left.start(), right.start()) == (RunStage("a", 1), RunStage("b", 1))
    assert left.stage_ended(ok("a", "done")) == RunStage("done", 2)
    assert right.stage_ended(ok("b", "done")) == RunStage("done", 2)
    assert code_of(lambda: chain.siblings_ended(move, [BranchEnded(stage="a")])).code == "TASK_LOOP_BOUND"


def test_N2_7_a_branch_that_fans_out_cannot_use_the_join_that_waits_for_it():
    chain = StageChain(graph(*FANNED))
    chain.start()
    branch = chain.branch(chain.stage_ended(ok("split")), 0)
    branch.start()
    fault = code_of(lambda: branch.stage_ended(ok("a", Go(stages=("b", "done"), execution="parallel", join="merge"))))
    assert fault.code == "TASK_JOIN_VIOLATED"
    assert "a is in a branch of it" in fault.message


@pytest.mark.parametrize("nodes", [(), ("a", "a"), (PlanNode(id="a", leads_to=Go(stages=("b",))),)])
def test_definitions_that_are_no_machine_are_rejected(nodes):
    with pytest.raises(InvalidError):
        graph(*nodes)


@pytest.mark.parametrize("plan", [7, ["a", 7], {"stages": 7}])
def test_a_plan_of_another_form_is_rejected(plan):
    with pytest.raises(InvalidError):
        Go.of(plan, "stage a: what Next returns")


def test_a_next_that_nobody_knows_names_the_stages():
    with pytest.raises(InvalidError, match=r"stage a: next: expected the id of a stage \(use a\), got 'nowhere'"):
        graph(PlanNode(id="a", leads_to=Go(stages=("nowhere",))))
    with pytest.raises(InvalidError, match=r"expected the id of a stage \(did you mean `build`\?\), got 'biuld'"):
        graph(PlanNode(id="build", leads_to=Go(stages=("biuld",))))
