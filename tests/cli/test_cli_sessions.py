"""`holdfast sessions ls|close|answer|export|import|rekey|prune`. What repairs a session is in test_cli_session_repairs.py."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import socket
import sqlite3
import subprocess
from contextlib import closing

import pytest
from cli_runs import SCRIPT, environment, holdfast

from holdfast import tool
from holdfast.cli.store.sessions import ids_from
from holdfast.faults import HoldfastError
from holdfast.once.records import StepStarted
from holdfast.sessions import Session
from holdfast.sessions.lease import _namespace, take
from holdfast.sessions.log import TurnStarted, new_entry
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, NewSession, SessionState, SqliteStore

DEAD = f"{socket.gethostname()}/999999999/1/{_namespace()}/x"
"""A process of this machine that is not there any more."""


@tool(effect="idempotent")
def square(n: int) -> int:
    return n * n


async def fill(path) -> None:
    async with SqliteStore(path) as store:
        async with Session.open(
            "release-1", store=store, project_root="/srv/app", agent_type="coder", model="opus"
        ) as session:
            async with session.turn("go"):
                await session.step(square, 3)
            await session.message("hello", id="m-1")
            session.context["chapter"] = 4
        with pytest.raises(HoldfastError, match="Permission required"):
            async with Session.open("release-2", store=store) as session, session.turn("go"):
                await session.step(square, 3)
                await session.approve("Deploy?")
        await crashed(store)


async def crashed(store) -> None:
    """A session whose process died in an unsafe step."""
    manifest = encode_manifest(Manifest(session_id="broken", store_id=store.id))
    facts = (TurnStarted(turn=1), StepStarted(turn=1, step="deploy#1", args="x", effect="unsafe"))
    entries = tuple(new_entry(one, f"e{n}") for n, one in enumerate(facts))
    await store.commit(Commit(session="broken", create=NewSession(manifest=manifest)))
    await store.commit(Commit(session="broken", state=SessionState.ACTIVE, entries=entries))
    await store.acquire("broken", DEAD, 3600.0)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "work.db"
    asyncio.run(fill(path))
    return str(path)


def verb(path, *arguments, **more):
    return holdfast("sessions", *arguments, "--store", path, **more)


def test_XD15_the_first_line_of_the_list_says_that_nobody_knows_what_happened(path):
    first = verb(path, "ls").stdout.splitlines()[0]
    assert first == "1 unsafe step may have happened, and nobody knows: `holdfast sessions show` broken"
    assert shown(path, "ls")["unknown_steps"] == {"broken": ["broken/1/deploy#1"]}


def shown(path, *arguments):
    result = verb(path, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def question(path) -> str:
    return shown(path, "show", "release-2")["questions"][0]["id"]


def test_ls_lists_them_in_order_and_every_form_holds_the_same(path):
    listed = shown(path, "ls")
    assert listed["schema"] == "holdfast.sessions/1"
    states = {session["session"]: session["state"] for session in listed["sessions"]}
    assert states == {"broken": "active", "release-1": "paused", "release-2": "paused"}
    assert [session["in_use"] for session in listed["sessions"]] == [False, False, False]
    lines = [json.loads(line) for line in verb(path, "ls", "--jsonl").stdout.splitlines()]
    assert lines == [{"schema": listed["schema"], **session} for session in listed["sessions"]]
    # The first line is about what nobody knows.
    table = verb(path, "ls").stdout.splitlines()[1:]
    assert table[0].split()[:2] == ["session", "state"]
    for row, session in zip(table[1:], listed["sessions"], strict=True):
        for name, value in session.items():
            if not isinstance(value, bool) and value is not None:
                assert str(value) in row, name


def test_ls_filters_by_state_and_number(path):
    names = [session["session"] for session in shown(path, "ls", "--state", "paused")["sessions"]]
    assert names == ["release-1", "release-2"]
    assert len(shown(path, "ls", "--limit", "1")["sessions"]) == 1
    assert shown(path, "ls", "--state", "closed")["sessions"] == []
    assert verb(path, "ls", "--state", "closed").stdout == ""
    assert verb(path, "ls", "--state", "asleep").exit_code == 2


def test_S0_19_show_has_state_manifest_turn_questions_and_checkpoint(path):
    found = shown(path, "show", "release-1")
    assert found["state"] == "paused"
    assert found["bridge_state"] == "resumable"
    assert found["stud_state"] == "Persisted"
    assert found["manifest"]["projectRoot"] == "/srv/app"
    assert found["messages"] == 1
    assert found["turn"] == 1
    assert not found["turn_in_flight"]
    assert found["can_resume"]
    found = shown(path, "show", "release-2")
    assert found["turn_in_flight"]
    assert found["steps"] == 1
    assert found["questions"][0]["prompt"] == "Deploy?"
    assert shown(path, "show", "broken")["unknown_steps"] == ["broken/1/deploy#1"]
    text = verb(path, "show", "release-2").stdout
    assert f"holdfast sessions answer release-2 {question(path)} --yes --store {path}" in text
    assert re.search(r"^  turn +1, in flight$", text, re.MULTILINE)
    assert "document" not in text
    assert re.search(r"^  projectRoot +/srv/app$", verb(path, "show", "release-1").stdout, re.MULTILINE)
    assert verb(path, "show", "release-1").stdout.startswith("release-1  paused, nothing is open\n")
    assert text.startswith("release-2  paused\n"), "it has a question that waits"


def test_XN5_show_counts_the_steps_that_it_lists(path):
    async def outside():
        async with SqliteStore(path) as store, Session.open("plain", store=store) as session:
            for number in range(6):
                await session.step(square, number)

    asyncio.run(outside())
    for name, steps in (("plain", 6), ("release-1", 1), ("release-2", 1)):
        assert shown(path, "show", name)["steps"] == steps, name
        assert re.search(rf"^  steps +{steps}$", verb(path, "show", name).stdout, re.MULTILINE), name


def test_XN5_a_session_at_rest_does_not_claim_to_be_finished(path):
    async def fail():
        async with SqliteStore(path) as store, Session.open("half", store=store) as session:
            await session.step(square, 1)
            raise ValueError("the program has a mistake")

    with pytest.raises(ValueError, match="mistake"):
        asyncio.run(fail())
    for name in ("half", "release-1"):
        (action,) = shown(path, "show", name)["next"]
        assert action["what"].startswith("Nothing waits for you. If its program has not finished, start it:")


def test_ids_may_be_cut_short_as_long_as_they_fit_one(path):
    assert shown(path, "show", "brok")["session"] == "broken"
    several = verb(path, "show", "rel")
    assert several.exit_code == 2
    assert "release-1, release-2" in several.stderr
    assert verb(path, "show", "nothing").exit_code == 3


def test_a_session_that_does_not_exist_or_a_store_that_does_not(path, tmp_path):
    for name in ("show", "resume", "close", "export"):
        assert verb(path, name, "nothing").exit_code == 3
    assert verb(str(tmp_path / "none.db"), "ls").exit_code == 3
    assert not (tmp_path / "none.db").exists()


def test_resume_pauses_what_a_dead_process_left_and_says_what_waits(path):
    result = verb(path, "resume", "broken", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "paused"
    commands = [line for action in json.loads(result.stdout)["next"] for line in action["commands"]]
    assert f"holdfast sessions resolve broken '1/deploy#1' --not-happened --store {path}" in commands
    result = verb(path, "resume", "release-2")
    assert f"holdfast sessions answer release-2 {question(path)}" in result.stdout
    assert result.stderr == ""


def test_resume_refuses_what_is_closed_or_in_use(path):
    assert verb(path, "close", "release-1", "--yes").exit_code == 0
    result = verb(path, "resume", "release-1")
    assert result.exit_code == 1
    assert "SESS_CLOSED" in result.stderr

    async def main():
        async with SqliteStore(path) as store:
            await store.acquire("broken", DEAD, 0.0)
            lease = await take(store, "broken", 60.0)
            found = await asyncio.to_thread(verb, path, "resume", "broken")
            shut = await asyncio.to_thread(verb, path, "close", "broken", "--yes")
            seen = await asyncio.to_thread(shown, path, "show", "broken")
            await store.release(lease)
            return found, shut, seen

    found, shut, seen = asyncio.run(main())
    assert found.exit_code != 0
    assert "is owned by" in found.stderr
    assert shut.exit_code != 0
    assert seen["in_use"]
    assert not seen["can_resume"]
    assert "works in it" in seen["problem"]


def test_FD13_close_asks_and_without_a_terminal_needs_yes(path):
    for given in (["release-1"], ["release-1", "release-2"]):
        result = verb(path, "close", *given)
        assert result.exit_code == 7
        assert "for good" in result.stderr
        assert "--yes" in result.stderr
    assert shown(path, "show", "release-1")["state"] == "paused"


def test_FD13_close_with_yes_takes_no_beginning_of_an_id(path):
    """A script that says --yes must not close another session because its id begins in the same way."""
    result = verb(path, "close", "brok", "--yes")
    assert result.exit_code == 2
    assert "broken" in result.stderr
    assert shown(path, "show", "broken")["state"] == "active"


@pytest.mark.parametrize(
    ("answer", "status", "state"), [(b"y\n", 0, "closed"), (b"\n", 7, "paused"), (b"no\n", 7, "paused")]
)
def test_FD13_close_asks_a_person_at_a_terminal(path, answer, status, state):
    ours, theirs = pty.openpty()
    command = [SCRIPT, "sessions", "close", "release-2", "--store", path]
    with subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=theirs, env=environment(COLUMNS="200")
    ) as process:
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(ours, 65_536)
        os.write(ours, answer)
        assert process.wait(30) == status
    os.close(ours)
    assert b"Close release-2 for good? It is paused" in seen
    assert shown(path, "show", "release-2")["state"] == state


def test_close_ends_one_and_several_with_yes(path):
    assert shown(path, "close", "release-1", "release-2", "--yes")["closed"] == ["release-1", "release-2"]
    assert {session["state"] for session in shown(path, "ls", "--state", "closed")["sessions"]} == {"closed"}
    assert not shown(path, "show", "release-2")["turn_in_flight"]
    again = verb(path, "close", "release-1", "--yes")
    assert again.exit_code == 1
    assert "SESS_CLOSED" in again.stderr


def test_answer_puts_an_answer_on_record_and_the_first_counts(path):
    id_ = question(path)
    assert shown(path, "answer", "release-2", id_[:6], "--yes", "--by", "ada")["by"] == "ada"
    assert verb(path, "answer", "release-2", id_, "--yes").exit_code == 0
    late = verb(path, "answer", "release-2", id_, "--no")
    assert late.exit_code != 0
    assert "SESS_ALREADY_ANSWERED" in late.stderr

    async def goes_on():
        async with SqliteStore(path) as store, Session.open("release-2", store=store) as session, session.turn():
            assert await session.step(square, 3) == 9
            assert await session.approve("Deploy?") is True

    asyncio.run(goes_on())


def test_answer_wants_exactly_one_answer_that_fits(path):
    id_ = question(path)
    assert verb(path, "answer", "release-2", id_).exit_code == 2
    assert verb(path, "answer", "release-2", id_, "--yes", "--no").exit_code == 2
    assert "SESS_INTERACTION_MISMATCH" in verb(path, "answer", "release-2", id_, "perhaps").stderr
    assert verb(path, "answer", "release-2", "q-none", "--yes").exit_code == 3
    assert shown(path, "answer", "release-2", id_, "--dismiss")["outcome"] == "dismissed"


def test_export_and_import_carry_a_session_to_another_store(path, tmp_path):
    exported = verb(path, "export", "release-2").stdout
    other = str(tmp_path / "other.db")
    assert verb(other, "import", "-", given=exported).exit_code == 0
    before, after = shown(path, "show", "release-2"), shown(other, "show", "release-2")
    for name in ("state", "entries", "checkpoint", "turn", "turn_in_flight", "steps", "questions", "messages"):
        assert before[name] == after[name], name
    assert before["epoch"] != after["epoch"]
    again = verb(other, "import", "-", given=exported)
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert shown(other, "show", "release-2") == after
    id_ = question(other)
    assert verb(other, "answer", "release-2", id_, "--yes").exit_code == 0

    async def goes_on():
        async with (
            SqliteStore(other) as store,
            Session.open("release-2", store=store, strict=True) as session,
            session.turn(),
        ):
            assert await session.step(square, 3) == 9
            assert await session.approve("Deploy?") is True

    asyncio.run(goes_on())


def test_export_writes_a_file_and_takes_one_session(path, tmp_path):
    target = tmp_path / "out.jsonl"
    assert verb(path, "export", "release-1", "-o", str(target)).exit_code == 0
    assert target.read_text() == verb(path, "export", "release-1").stdout
    assert sorted(file.name for file in tmp_path.iterdir() if "out" in file.name) == ["out.jsonl"]
    assert verb(path, "export", "release-1", "release-2").exit_code == 2
    assert verb(str(tmp_path / "new.db"), "import", str(target)).exit_code == 0
    assert verb(path, "import", str(tmp_path / "missing")).exit_code == 2


def test_S0_28_export_and_import_speak_document_000(path, tmp_path):
    text = verb(path, "export", "release-1", "release-2", "--persisted").stdout
    first, _ = json.loads(text)
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert set(first) == {"id", "agentType", "workingDirectory", "createdAt", "lastActivityAt", "checkpoint"}
    assert (first["agentType"], first["workingDirectory"]) == ("coder", "/srv/app")
    assert first["checkpoint"]["messageCount"] == 1
    assert first["checkpoint"]["contextSnapshot"] == {"chapter": 4}
    other = str(tmp_path / "other.db")
    found = json.loads(verb(other, "import", "-", "--persisted", "--json", given=text).stdout)
    assert found["imported"] == ["release-1", "release-2"]
    again, _ = json.loads(verb(other, "export", "release-1", "release-2", "--persisted").stdout)
    assert again["checkpoint"] == first["checkpoint"]
    assert again["createdAt"][:19] == first["createdAt"][:19]

    async def goes_on():
        async with SqliteStore(other) as store, Session.open("release-1", store=store, strict=True) as session:
            assert session.context == {"chapter": 4}

    asyncio.run(goes_on())


def test_C25_the_good_sessions_of_a_file_are_imported_and_the_bad_one_is_named(path, tmp_path):
    sessions = json.loads(verb(path, "export", "release-1", "--persisted").stdout)
    given = json.dumps([{"id": "half"}, *sessions])
    result = verb(str(tmp_path / "other.db"), "import", "-", "--persisted", "--json", given=given)
    assert result.exit_code != 0
    assert json.loads(result.stdout)["imported"] == ["release-1"]
    assert "Session 0 in stdin" in result.stderr
    target = tmp_path / "sessions.json"
    target.write_text(given)
    result = verb(path, "export", "release-1", "--persisted", "-o", str(target))
    assert result.exit_code != 0
    assert target.read_text() == given


def test_prune_shows_first_and_drops_with_yes(path):
    assert verb(path, "close", "release-1", "--yes").exit_code == 0
    assert verb(path, "prune").exit_code == 0
    found = verb(path, "prune", "--closed", "0s", "--json")
    assert found.exit_code == 7
    assert [action["what"] for action in json.loads(found.stdout)["actions"]] == ["remove"]
    assert verb(path, "show", "release-1").exit_code == 0
    assert "release-1" in verb(path, "prune", "--closed", "0s").stdout
    assert shown(path, "prune", "--closed", "0s", "--idle", "0s", "--yes")["done"]
    assert verb(path, "show", "release-1").exit_code == 3
    assert question(path)
    assert verb(path, "prune", "--closed", "soon").exit_code == 2
    assert verb(path, "prune", "--claims", "never").exit_code == 2


def test_the_installed_command_reads_the_store_from_the_environment(path):
    done = subprocess.run(
        [SCRIPT, "sessions", "ls", "--json"],
        env=environment(HOLDFAST_STORE=path, PYTHONPATH=os.environ.get("PYTHONPATH", "")),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert len(json.loads(done.stdout)["sessions"]) == 3


def test_a_shell_completes_ids_and_shows_no_errors(path, tmp_path):
    assert ids_from(path, "rel") == ["release-1", "release-2"]
    assert ids_from(path, "release-2") == ["release-2"]
    assert ids_from(path, "") == ["broken", "release-1", "release-2"]
    assert ids_from(str(tmp_path / "none.db"), "") == []
    typed = {"COMP_WORDS": "holdfast sessions show rel", "COMP_CWORD": "3", "_HOLDFAST_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [SCRIPT],
        env=environment(HOLDFAST_STORE=path, PYTHONPATH=os.environ.get("PYTHONPATH", ""), **typed),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [b"release-1", b"release-2"]


def test_a_session_whose_manifest_is_damaged_is_shown_as_that_and_the_others_are_served(path):
    async def damage():
        async with SqliteStore(path) as store:
            await store.commit(Commit(session="odd", create=NewSession(manifest=b'{"sessionId":7}')))

    asyncio.run(damage())
    found = shown(path, "show", "odd")
    assert found["manifest"] is None
    assert "cannot be read" in found["problem"]
    assert not found["can_resume"]
    for name in ("resume", "export"):
        result = verb(path, name, "odd")
        assert result.exit_code != 0
        assert "SESS_MANIFEST_INVALID" in result.stderr
    assert len(shown(path, "ls")["sessions"]) == 4
    assert shown(path, "show", "release-1")["can_resume"]


@pytest.mark.parametrize("column", ["lease_until", "last_at", "created_at", "top", "fence", "oldest", "checkpoint"])
def test_FD13_a_bad_number_in_one_session_does_not_hide_the_others(path, column):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE session SET {column} = 'soon' WHERE CAST(manifest AS TEXT) LIKE '%broken%'")
        connection.commit()
    listed = {session["session"]: session["state"] for session in shown(path, "ls")["sessions"]}
    assert listed == {"broken": "error", "release-1": "paused", "release-2": "paused"}
    result = verb(path, "show", "broken")
    assert result.exit_code == 1
    assert f"its {column} is 'soon'" in result.stderr


def test_FD13_an_export_is_for_its_owner_only(path, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    out.chmod(0o644)
    assert verb(path, "export", "release-1", "-o", str(out)).exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir() if "out" in one.name] == ["out.jsonl"]


def test_FD12_import_says_that_the_trail_is_sound_and_rejects_an_edited_one(path, tmp_path):
    lines = verb(path, "export", "release-1").stdout
    edited = lines.replace('"state":"created"', '"state":"never"')
    assert edited != lines
    other = str(tmp_path / "other.db")
    result = verb(other, "import", "-", given=edited)
    assert result.exit_code == 1
    assert "record 1 was changed" in result.stderr
    result = verb(other, "import", "-", "--unverified", given=edited)
    assert result.exit_code == 0
    assert "the new audit trail says so: record 1 was changed" in result.stderr
    third = str(tmp_path / "third.db")
    result = verb(third, "import", "-", given=lines)
    assert re.search(r"verified (\d+) of \1 audit records", result.stderr)
    (trail,) = json.loads(verb(str(tmp_path / "fourth.db"), "import", "-", "--json", given=lines).stdout)["trails"]
    assert (trail["session"], trail["tampered"], trail["claims"]) == ("release-1", "", 1)


def test_XD11_XD13_an_encrypted_store_is_exported_and_rekeyed_and_without_its_key_nothing_is_lost(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OLD_KEY", "01" * 32)
    monkeypatch.setenv("NEW_KEY", "02" * 32)
    path = f"sqlite:{tmp_path}/work.db"

    async def work() -> None:
        async with Session.open("release-9", store=f"{path}?key_env=OLD_KEY") as session:
            await session.message("a canary message")

    asyncio.run(work())
    refused = holdfast("sessions", "export", "release-9", "--store", f"{path}?key_env=OLD_KEY")
    assert refused.exit_code == 2, refused.stderr
    assert "--plain" in refused.stderr
    exported = holdfast("sessions", "export", "release-9", "--plain", "--store", f"{path}?key_env=OLD_KEY")
    assert "a canary message" in exported.stdout
    wrong = holdfast("sessions", "show", "release-9", "--store", f"{path}?key_env=NEW_KEY")
    assert wrong.exit_code == 1, wrong.stderr
    assert "SESS_KEY_WRONG" in wrong.stderr
    for verb_ in (("show",), ("close", "--yes"), ("abandon", "--yes"), ("fork", "new-id")):
        missing = holdfast("sessions", verb_[0], "release-9", *verb_[1:], "--store", path)
        assert "SESS_KEY_WRONG" in missing.stderr, verb_
        assert "without a key: add ?key_env=NAME" in missing.stderr
    for verb_ in (("close", "holdfast-keys", "--yes"), ("prune", "--closed", "0s", "--yes")):
        done = holdfast("sessions", *verb_, "--store", path)
        assert ("is reserved" in done.stderr) == (verb_[0] == "close")
    done = holdfast("sessions", "rekey", "--store", f"{path}?key_env=NEW_KEY,OLD_KEY")
    assert "rewrapped 2 data keys" in done.stderr
    assert holdfast("sessions", "show", "release-9", "--store", f"{path}?key_env=NEW_KEY").stdout
    plain = holdfast("sessions", "rekey", "--store", path)
    assert plain.exit_code == 2, plain.stderr
    assert "an encrypted store" in plain.stderr


def test_a_session_that_is_not_in_the_default_store_names_the_store_and_the_option(path, tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = holdfast("sessions", "show", "october")
    assert result.exit_code != 0
    text = " ".join(result.stderr.split())
    assert "Session 'october' not found in the default store, sqlite:" in text
    assert "Name another one with --store ADDRESS" in text
    assert "default store" not in verb(path, "show", "october").stderr
