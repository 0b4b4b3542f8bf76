"""The scripts of the fault provider: what they mean, and the errors for those that cannot be read."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.faults import InvalidError
from holdfast.testing.provider.http import Request
from holdfast.testing.provider.replies import ToolCall, Turn
from holdfast.testing.provider.script import Playback, Script, read_file, read_script

KEY = "sk-a"


def asking(model="claude-haiku-4-5", key=KEY):
    return Request("POST", "/v1/messages", {"x-api-key": key}, b'{"model":"%s"}' % model.encode())


def names(script, count, *, at=0.0, seed=None, **request):
    playing = Playback(read_script(script), seed=seed)
    return [playing.next(asking(**request), at).name for _ in range(count)]


def test_a_sequence_is_played_once_and_then_all_requests_succeed():
    assert names("429;retry-after=7, 529*2, ok, cut;after=3", 7) == ["429", "529", "529", "ok", "cut", "ok", "ok"]


def test_a_looped_sequence_begins_again():
    assert names("503, ok, loop", 5) == ["503", "ok", "503", "ok", "503"]


def test_without_a_script_all_requests_succeed():
    assert names("", 3) == ["ok"] * 3


def test_chance_follows_the_seed():
    drawn = names("529%30*1000", 1000, seed=1)
    assert drawn == names("529%30*1000", 1000, seed=1)
    assert drawn != names("529%30*1000", 1000, seed=2)
    assert 250 < Counter(drawn)["529"] < 350


def test_a_share_of_the_requests_meets_a_rule_and_the_others_go_on_to_the_next():
    script = '[[rules]]\nsteps = "529"\nloop = true\nshare = 0.3\n[[rules]]\nsteps = "reset"\nloop = true\n'
    drawn = Counter(names(script, 1000))
    assert drawn["529"] + drawn["reset"] == 1000
    assert 250 < drawn["529"] < 350


def test_an_outage_from_second_5_to_60():
    playing = Playback(read_script('[[rules]]\nsteps = "503"\nloop = true\nfrom = 5\nto = 60\n'))
    seen = {at: playing.next(asking(), at).name for at in (0, 4.9, 5, 59.9, 60)}
    assert seen == {0: "ok", 4.9: "ok", 5: "503", 59.9: "503", 60: "ok"}


def test_rules_for_models_and_keys_do_not_apply_to_others():
    script = '[[rules]]\nsteps = "429"\nloop = true\nmodels = ["claude-*"]\nkeys = ["sk-a"]\n'
    assert names(script, 1) == ["429"]
    assert names(script, 1, model="gpt-5") == ["ok"]
    assert names(script, 1, key="sk-b") == ["ok"]


def test_a_rule_that_does_not_apply_keeps_its_steps():
    playing = Playback(read_script('[[rules]]\nsteps = "429, 503"\nmodels = ["gpt-*"]\n'))
    models = ["claude-x", "gpt-5", "claude-x", "gpt-5"]
    assert [playing.next(asking(model), 0).name for model in models] == ["ok", "429", "ok", "503"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("429, banana", "rules[0].steps[1]: expected ok, a status"),
        ("200", "rules[0].steps[0]: expected ok, a status"),
        ("304", "rules[0].steps[0]: expected ok, a status"),
        ("cut;after=x", "rules[0].steps[0] cut;after: expected a whole number, got 'x'"),
        ("cut;after=-1", "cut;after: expected a whole number ≥ 0, got -1"),
        ("cut;befor=1", "expected an option of cut: after, got 'befor'"),
        ("hang;seconds=1", "expected an option of hang: no option, got 'seconds'"),
        ("slow;seconds=nan", "slow;seconds: expected a finite number of seconds > 0, got nan"),
        ("sse-error;error=banana", "sse-error;error: expected one of auth"),
        ("429;retry-after", "rules[0].steps[0]: expected an option as NAME=VALUE, got 'retry-after'"),
        ("429;content-length=3", "expected a header other than connection, content-length, transfer-encoding"),
        ("ok;after=1", "expected ok, a status"),
        ("loop", "expected ok, a status"),
        ("429,,ok", "rules[0].steps[1]: expected ok, a status"),
    ],
)
def test_an_invalid_step_raises_with_place_and_reason(script, message):
    with pytest.raises(InvalidError) as caught:
        read_script(script)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("share = 2", "script.toml:6: rules[1].share: expected a number above 0 to 1, got 2.0"),
        ('share = "much"', "script.toml:6: rules[1].share: expected float, got str"),
        ("shaer = 0.5", "script.toml:6: rules[1].shaer: expected one of steps, loop, share, from, to, models, keys"),
        ("to = -1", "script.toml:6: rules[1].to: expected a finite number of seconds > 0 or None, got -1.0"),
        ("from = 9\nto = 9", "script.toml:7: rules[1].to: expected a moment after 9 s"),
        ('models = "claude"', "script.toml:6: rules[1].models: expected array, got str"),
        ("share = = 2", "script.toml: expected TOML, got a syntax error: Invalid value (at line 6"),
    ],
)
def test_a_bad_file_names_line_field_expected_and_got(tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.toml").write_text(f'[[rules]]\nsteps = "429"\n\n[[rules]]\nsteps = "503"\n{line}\n')
    with pytest.raises(InvalidError) as caught:
        read_file("script.toml")
    assert caught.value.fault.message.startswith(message)


def test_a_bad_step_in_a_file_names_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.toml").write_text('seed = 1\n[[rules]]\nloop = true\nsteps = "429, banana"\n')
    with pytest.raises(InvalidError, match=r"script\.toml:4: rules\[0\]\.steps\[1\]: expected ok, a status"):
        read_file("script.toml")


def test_a_file_without_steps_names_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.toml").write_text("seed = 1\n[[rules]]\nloop = true\n")
    with pytest.raises(InvalidError, match=r"script\.toml:2: .*steps: expected a value, got nothing"):
        read_file("script.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('replies = "parrot"\n', "script:1: replies: expected one of echo, tools, got 'parrot'"),
        ("replies = []\n", "script:1: replies: expected at least one turn"),
        ("seed = -1\n", "script:1: seed: expected a whole number ≥ 0, got -1"),
        ("speed = 1\n", "script:1: speed: expected one of seed, replies, rules"),
    ],
)
def test_settings_beside_the_rules_are_checked_too(text, message):
    with pytest.raises(InvalidError) as caught:
        read_script(text)
    assert caught.value.fault.message.startswith(message)


def test_turns_in_code_may_be_written_as_in_toml():
    script = Script(
        replies=[{"tool": "add", "arguments": {"a": 1}}, {"text": "Both.", "calls": [{"tool": "x"}]}, "Done."]
    )
    assert script.replies == (Turn(tool="add", arguments={"a": 1}), Turn(text="Both.", calls=(ToolCall("x"),)), "Done.")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"tol": "add"}, "replies[1].tol: expected one of tool, arguments, text, calls"),
        ({"tool": 5}, "replies[1].tool: expected str, got int"),
        (5, "replies[1]: expected a text, a Turn, or a dict"),
    ],
)
def test_a_turn_that_cannot_be_played_is_named_when_the_script_is_made(reply, message):
    with pytest.raises(InvalidError) as caught:
        Script(replies=("Hello.", reply))
    assert message in str(caught.value)
