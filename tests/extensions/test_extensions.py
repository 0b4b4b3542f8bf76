"""Extensions of other packages, really installed: found, started in order, isolated, stopped in reverse (N2-14)."""

from __future__ import annotations

import sys
import threading

import pytest
from extensions_packages import Shelf, rule_source

from holdfast import Runtime, fault_of, recover
from holdfast.classify import CLASSIFIER
from holdfast.events import Retry, SuppressedError
from holdfast.extensions import Extensions
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import Capture, VirtualClock


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "shelf_diary", [], raising=False)
    return Shelf(tmp_path, monkeypatch)


@pytest.fixture
def runtime():
    """The default runtime of the test: `fault_of` recognises failures by its rules."""
    with use_runtime(Runtime(clock=VirtualClock())) as runtime:
        yield runtime


def diary():
    return sys.shelf_diary


def reasons(extensions):
    return {one.id: (one.fault.code, one.fault.message) for one in extensions.skipped}


DRAINING = """
from holdfast.classify import Verdict

id = "gateway"
contract = 1

def draining(evidence):
    return Verdict(code="PROVIDER_UNAVAILABLE") if evidence.status == 470 else None

def start(runtime):
    return draining
"""


def test_a_rule_of_another_package_comes_before_ours_while_it_runs(shelf, runtime):
    shelf.install("gateway", DRAINING, value="")
    answer = type("Answer", (), {"status_code": 470, "headers": {}})()
    assert fault_of(answer).code == "PROVIDER_BAD_REQUEST"
    with Extensions(runtime=runtime) as extensions:
        assert [one.id for one in extensions.started] == ["gateway"]
        assert fault_of(answer).code == "PROVIDER_UNAVAILABLE"
        assert fault_of(answer).rule == "shelf_gateway.draining"
        assert fault_of(answer, classifier=CLASSIFIER).code == "PROVIDER_BAD_REQUEST"
    assert fault_of(answer).code == "PROVIDER_BAD_REQUEST"
    assert runtime.rules.classifier is CLASSIFIER


def test_recoveries_use_the_rule(shelf, runtime):
    shelf.install("gateway", DRAINING, value="")
    calls = []

    class Drained(Exception):
        status_code = 470

    def call():
        calls.append(1)
        if len(calls) < 3:
            raise Drained
        return "there"

    with Extensions(runtime=runtime):
        assert recover("gateway", runtime=runtime).call(call) == "there"


def test_a_sink_of_another_package_receives_events_until_it_is_stopped(shelf, runtime):
    source = """
    import sys
    from holdfast.events import Retry

    class Extension:
        id, contract = "diary", 1

        def start(self, runtime):
            return runtime.on(lambda event: sys.shelf_diary.append(event.text), Retry)
    """
    shelf.install("diary", source, group="holdfast.sinks")
    retry = Retry(at=0.0, attempt=1, max_attempts=3, delay=1.0, fault=fault_of("429 slow down"))
    with Extensions(runtime=runtime):
        runtime.bus.emit(retry)
    runtime.bus.emit(retry)
    assert diary() == ["Retrying... (2/3)"]


def test_they_start_in_dependency_order_and_stop_in_reverse(shelf, runtime):
    shelf.install("a", rule_source("a", requires=("b", "c")))
    shelf.install("b", rule_source("b", requires=("c",)))
    shelf.install("c", rule_source("c"))
    with Extensions(runtime=runtime) as extensions:
        assert diary() == ["start c", "start b", "start a"]
        assert extensions.document == {"started": ["c", "b", "a"], "skipped": []}
    assert diary()[3:] == ["stop a", "stop b", "stop c"]
    extensions.stop()
    assert len(diary()) == 6


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no licence')", "Extension bad failed in load: RuntimeError: no licence"),
        ("import sys; sys.exit('bye')", "Extension bad failed in load: SystemExit: bye"),
        ("import no_such_package_at_all", "No module named 'no_such_package_at_all'"),
        ("def (", "SyntaxError"),
        ("Other = 1", "has no attribute 'Extension'"),
        ("class Extension:\n  id, contract = 'bad', 1", "expected a function of the runtime, got NoneType"),
        ("class Extension:\n  id, contract = 'bad', '1'\n  def start(self, runtime): ...", "expected int, got str"),
        ("class Extension:\n  contract = 1\n  def start(self, runtime): ...", "$.id: expected str, got null"),
        (rule_source("bad", start="raise OSError('port taken')"), "Extension bad failed in start: OSError: port taken"),
        (rule_source("bad", start="return 7"), "expected a rule or a list of rules"),
    ],
    ids=[
        "raises",
        "exits",
        "imports",
        "syntax",
        "name",
        "no start",
        "contract",
        "no id",
        "start raises",
        "adds no rule",
    ],
)
def test_N2_14_a_broken_extension_is_skipped_with_its_reason_and_blocks_no_other(shelf, runtime, source, reason):
    shelf.install("bad", source)
    shelf.install("good", rule_source("good"))
    shelf.install("needs", rule_source("needs", requires=("bad",)))
    with Extensions(runtime=runtime) as extensions:
        assert [one.id for one in extensions.started] == ["good"]
        skipped = reasons(extensions)
        # What an extension lacks to be one has a code of its own.
        is_shape = "got NoneType" in reason or "expected int" in reason or "expected str" in reason
        assert skipped["bad"][0] == ("CONFIG_SHAPE_INVALID" if is_shape else "SYS_LIFECYCLE_FAILURE")
        assert reason in skipped["bad"][1]
        because = f"needs needs bad, which was left out: {skipped['bad'][1]}"
        assert skipped["needs"] == ("SYS_DEPENDENCY_MISSING", because)
    assert "stop good" in diary()


def test_an_extension_that_adds_nothing_usable_is_stopped_again(shelf, runtime):
    shelf.install("bad", rule_source("bad", start="return None"))
    with Extensions(runtime=runtime) as extensions:
        assert list(reasons(extensions)) == ["bad"]
    assert diary() == ["start bad", "stop bad"]


def test_a_start_that_hangs_is_left_behind_and_adds_nothing_when_it_comes_late(shelf, runtime, monkeypatch):
    gate, stopped = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "shelf_gate", gate, raising=False)
    monkeypatch.setattr(sys, "shelf_stopped", stopped, raising=False)
    source = """
    import sys

    class Extension:
        id, contract = "slow", 1

        def start(self, runtime):
            sys.shelf_gate.wait(5)
            return lambda evidence: None

        def stop(self):
            sys.shelf_stopped.set()
    """
    shelf.install("slow", source)
    with Extensions(runtime=runtime, limit=0.05) as extensions:
        assert reasons(extensions) == {
            "slow": (
                "SYS_LIFECYCLE_FAILURE",
                "Extension slow failed in start: it did not finish within 0.05 s and was left behind",
            )
        }
        gate.set()
        assert stopped.wait(5)
        assert runtime.rules.classifier is CLASSIFIER


def test_a_stop_that_raises_is_reported_and_the_rest_is_stopped(shelf, runtime):
    shelf.install("a", rule_source("a"))
    shelf.install("b", rule_source("b") + "        raise OSError('stuck')\n")
    heard = Capture()
    runtime.on(heard, SuppressedError)
    with Extensions(runtime=runtime):
        pass
    assert diary()[2:] == ["stop b", "stop a"]
    (event,) = heard.events
    assert (event.reason, event.code) == ("extension b did not stop cleanly", "SYS_LIFECYCLE_FAILURE")
    assert runtime.rules.classifier is CLASSIFIER


def test_S2_10_a_skipped_extension_is_an_event_too(shelf, runtime):
    shelf.install("old", rule_source("old", contract=0))
    heard = Capture()
    runtime.on(heard, SuppressedError)
    with Extensions(runtime=runtime) as extensions:
        assert diary() == []
        assert extensions.document["skipped"] == [
            {
                "extId": "old",
                "reason": "old speaks contract version 0, this Holdfast speaks 1",
                "code": "CONFIG_CONTRACT_MISMATCH",
            }
        ]
    assert [(event.reason, event.code) for event in heard.events] == [
        ("extension old was left out", "CONFIG_CONTRACT_MISMATCH")
    ]


def test_one_can_be_switched_off(shelf, runtime):
    shelf.install("a", rule_source("a"))
    with Extensions(runtime=runtime, without=("a",)) as extensions:
        assert reasons(extensions)["a"][1] == "Extension a is switched off"
    assert diary() == []


@pytest.mark.parametrize("rule", ["return [][0]", "return 'PROVIDER_TIMEOUT'"], ids=["raises", "no verdict"])
def test_a_rule_that_misbehaves_spoils_no_classification_and_is_reported_once(shelf, runtime, rule):
    source = f"""
    class Extension:
        id, contract = "bad", 1

        def start(self, runtime):
            return [self.judge]

        def judge(self, evidence):
            {rule}
    """
    shelf.install("bad", source)
    heard = Capture()
    runtime.on(heard, SuppressedError)
    with Extensions(runtime=runtime):
        assert fault_of(ConnectionRefusedError(111, "refused")).code == "CONN_REFUSED"
        assert fault_of(ConnectionRefusedError(111, "refused")).code == "CONN_REFUSED"
    assert [event.reason for event in heard.events] == ["rule Extension.judge raised"]


def test_they_are_started_once(shelf, runtime):
    shelf.install("a", rule_source("a"))
    with Extensions(runtime=runtime) as extensions, pytest.raises(InvalidError, match="started again"):
        extensions.start()


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"without": "abc"}])
def test_wrong_options_are_rejected(runtime, wrong):
    with pytest.raises(InvalidError):
        Extensions(runtime=runtime, **wrong)


def test_two_broken_extensions_of_one_name_are_both_reported(shelf, runtime):
    shelf.install("bad", "raise RuntimeError('one')")
    (shelf.folder / "shelf_bad-1.0.dist-info" / "entry_points.txt").write_text(
        "[holdfast.rules]\nbad = shelf_bad:Extension\n[holdfast.sinks]\nbad = shelf_bad:Extension\n", encoding="utf-8"
    )
    with Extensions(runtime=runtime) as extensions:
        assert sorted(reasons(extensions)) == ["bad", "bad in holdfast.sinks"]


def test_an_interrupted_start_stops_what_already_runs(shelf, runtime, monkeypatch):
    shelf.install("a", rule_source("a"))
    shelf.install("b", rule_source("b", contract=0))

    def interrupted(event):
        raise KeyboardInterrupt

    with runtime.on(interrupted, SuppressedError), pytest.raises(KeyboardInterrupt), Extensions(runtime=runtime):
        raise AssertionError("not reached")
    assert diary() == ["start a", "stop a"]
    assert runtime.rules.classifier is CLASSIFIER


@pytest.mark.parametrize("broken", [b"[holdfast.rules]\nno such line\n", b"\xff\xfe[a]\n"], ids=["line", "bytes"])
def test_N2_14_a_package_with_a_broken_list_hides_no_other_package(shelf, runtime, tmp_path, broken):
    shelf.install("gateway", DRAINING, value="")
    info = tmp_path / "spoilt-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spoilt\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_bytes(broken)
    with Extensions(runtime=runtime) as extensions:
        assert [one.id for one in extensions.started] == ["gateway"]
        assert reasons(extensions)["spoilt"][0] == "SYS_LIFECYCLE_FAILURE"


def test_rules_belong_to_the_runtime_they_were_added_to(shelf, runtime):
    shelf.install("gateway", DRAINING, value="")
    other = Runtime(clock=VirtualClock())
    answer = type("Answer", (), {"status_code": 470, "headers": {}})()
    with Extensions(runtime=other):
        assert fault_of(answer).code == "PROVIDER_BAD_REQUEST", "the default runtime has no such rule"
        assert fault_of(answer, classifier=other.rules.classifier).code == "PROVIDER_UNAVAILABLE"
