"""`holdfast audit tail|query|verify|export`"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from cli_runs import KEY, SCRIPT, environment, holdfast, running

from holdfast.stores import Commit, NewAudit, NewSession, SqliteStore, open_store
from holdfast.stores.chain import verify
from holdfast.stores.records import AuditRecord
from holdfast.testing import VirtualClock

NOON = 1_774_008_000.0  # 2026-03-20T12:00:00Z


def audit(kind, correlation, **payload):
    return NewAudit(kind=kind, correlation=correlation, payload=msgspec.json.encode(payload))


async def fill(path):
    clock = VirtualClock(wall=NOON)
    async with SqliteStore(path, clock=clock) as store:
        for n in range(1, 4):
            code = "PROVIDER_OVERLOADED" if n < 3 else "PROVIDER_RATE_LIMITED"
            await store.commit(Commit(chain="runtime", audit=(audit("Retry", "run-1", code=code, attempt=n),)))
            clock.advance(60)
        new = NewSession(manifest=b"{}")
        await store.commit(Commit(session="s1", create=new, audit=(audit("SessionLifecycle", "s1", to="created"),)))
        clock.advance(60)
        await store.commit(Commit(chain="runtime", audit=(audit("Fault", "run-2", code="AUTH_FAILED"),)))
        await store.commit(Commit(session="s2", create=new))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "work.db"
    asyncio.run(fill(path))
    return str(path)


def records(*arguments):
    return json.loads(holdfast("audit", *arguments, "--json").stdout)["records"]


def places(found):
    return [(record["chain"], record["seq"]) for record in found]


ALL = [("runtime", 1), ("runtime", 2), ("runtime", 3), ("session:s1", 1), ("runtime", 4)]


def test_tail_shows_the_newest_of_all_chains_in_order(path):
    assert places(records("tail", "--store", path)) == ALL
    assert places(records("tail", "-n", "2", "--store", path)) == ALL[-2:]
    assert places(records("tail", "-n", "1", "--class", "retry", "--store", path)) == [("runtime", 3)]
    assert records("tail", "-n", "0", "--store", path) == []


def test_tail_finds_few_among_many(tmp_path):
    async def make():
        async with SqliteStore(tmp_path / "a.db") as store:
            many = tuple(audit("Retry", f"run-{n}", n=n) for n in range(950))
            await store.commit(Commit(chain="runtime", audit=(audit("Alert", "a", n=-1), *many)))

    asyncio.run(make())
    assert places(records("tail", "--class", "Alert", "--store", str(tmp_path / "a.db"))) == [("runtime", 1)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], ALL),
        (["--chain", "runtime"], [ALL[0], ALL[1], ALL[2], ALL[4]]),
        (["--session", "s1"], [ALL[3]]),
        (["--session", "s1", "--chain", "runtime"], []),
        (["--class", "Fault"], [ALL[4]]),
        (["--class", "Fault", "--class", "SessionLifecycle"], [ALL[3], ALL[4]]),
        (["--code", "PROVIDER_OVERLOADED"], ALL[:2]),
        (["--code", "ProviderTransient/RateLimited"], [ALL[2]]),
        (["--code", "NO_SUCH_CODE"], []),
        (["--correlation", "run-1"], ALL[:3]),
        (["--correlation", "run-1", "--code", "PROVIDER_OVERLOADED", "--since", "2026-03-20T12:01:00Z"], [ALL[1]]),
        (["--since", "2026-03-20T12:01:00Z", "--until", "2026-03-20T12:03:00Z"], [ALL[1], ALL[2]]),
        (["--since", "5m"], []),
        (["--since", "yesterday"], []),
        (["--since", "2026-03-20", "--until", "2026-03-20T12:01:30Z"], ALL[:2]),
    ],
)
def test_query_filters_add_up(path, filters, found):
    result = holdfast("audit", "query", *filters, "--store", path, "--json")
    assert places(json.loads(result.stdout)["records"]) == found
    assert result.exit_code == (0 if found else 3)


def test_query_keeps_the_newest_and_says_so(path):
    result = holdfast("audit", "query", "--limit", "2", "--store", path, "--jsonl")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert places(lines) == ALL[-2:]
    assert {line["schema"] for line in lines} == {"holdfast.audit/1"}
    assert result.stderr == "the newest 2 of 5 records that fit; --limit shows more\n"


def test_a_table_holds_the_same_as_its_json(path):
    head, *rows = (line.split(maxsplit=5) for line in holdfast("audit", "query", "--store", path).stdout.splitlines())
    assert head == ["time", "chain", "n", "class", "correlation", "payload"]
    found = records("query", "--store", path)
    assert [row[:5] for row in rows] == [[str(record[key]) for key in ("at", "chain", "seq", "class", "correlation")] for record in found]  # fmt: skip
    assert [json.loads(row[5]) for row in rows] == [record["payload"] for record in found]
    assert rows[0][0] == "2026-03-20T12:00:00.000Z"


def test_nothing_found_is_reported_and_prints_no_table(path):
    result = holdfast("audit", "query", "--code", "AUTH_REQUIRED", "--store", path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no record fits" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("query", "--since", "tea time"), "--since: expected a date and time"),
        (
            ("query", "--class", "Rumour"),
            "--class: expected a class of audit records (use one of Actor, Alert, Approval",
        ),
        (("query", "--json", "--jsonl"), "--json: expected --jsonl with nothing beside it"),
        (("tail", "--json", "--follow"), "--json: expected --jsonl with --follow"),
        (("tail", "--store", "mysql://me:hunter2hunter2@host/db"), "store: expected memory:, sqlite:PATH"),
        (("tail", "-n", "-1"), "Invalid value for '-n'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_exits_2_and_says_why(path, arguments, message):
    result = holdfast("audit", *arguments, *(() if "--store" in arguments else ("--store", path)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("verb", ["tail", "query", "verify", "export"])
def test_a_store_that_is_not_there_is_not_made(tmp_path, verb):
    result = holdfast("audit", verb, "--store", str(tmp_path / "none.db"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "There is no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_C25_before_anything_was_saved_the_usual_store_is_empty(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for verb in (("audit", "verify"), ("audit", "tail"), ("sessions", "ls")):
        assert holdfast(*verb).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_the_usual_store_and_the_variable(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{path}")
    assert places(records("tail")) == ALL
    monkeypatch.delenv("HOLDFAST_STORE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    usual = tmp_path / "state" / "holdfast" / "holdfast.db"
    usual.parent.mkdir(parents=True)
    shutil.copy2(path, usual)
    assert places(records("tail")) == ALL


# Verifying


def tamper(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_verify_says_what_it_found(path):
    result = holdfast("audit", "verify", "--store", path, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["schema"], found["sound"], found["records"]) == ("holdfast.audit.verify/1", True, 5)
    assert [(head["chain"], head["seq"]) for head in found["heads"]] == [("runtime", 4), ("session:s1", 1)]
    assert found["unaudited"] == ["s2"]
    assert f"5 sound records in 2 chains; digest {found['digest']}" in result.stderr
    table = holdfast("audit", "verify", "--store", path).stdout.splitlines()
    assert [line.split() for line in table[1:]] == [
        *([head["chain"], str(head["seq"]), head["hash"], "sound"] for head in found["heads"]),
        ["session:s2", "0", "not", "audited"],
    ]


def test_verify_finds_an_edit_and_says_where(path):
    tamper(path, 'UPDATE audit SET payload = \'{"code":"NONE"}\' WHERE seq = 2')
    result = holdfast("audit", "verify", "--store", path)
    assert result.exit_code == 1
    assert "breaks at record 2: its content was changed" in result.stdout
    assert "SYS_AUDIT_TAMPERED  Audit chain 'runtime' breaks at record 2" in result.stderr
    assert "holdfast explain SYS_AUDIT_TAMPERED" in result.stderr
    found = json.loads(holdfast("audit", "verify", "--store", path, "--json").stdout)
    assert (found["sound"], found["records"]) == (False, 2)
    assert found["broken"] == [{"chain": "runtime", "seq": 2, "reason": "its content was changed"}]


def test_verify_expects_a_digest(path):
    digest = json.loads(holdfast("audit", "verify", "--store", path, "--json").stdout)["digest"]
    assert holdfast("audit", "verify", "--store", path, "--expect", digest).exit_code == 0
    tamper(path, "DELETE FROM chain WHERE name = 'session:s1'")
    result = holdfast("audit", "verify", "--store", path)
    assert result.exit_code == 1
    assert "their chain is gone" in result.stdout
    tamper(path, "DELETE FROM audit WHERE chain NOT IN (SELECT key FROM chain)")
    assert holdfast("audit", "verify", "--store", path).exit_code == 0, (
        "without an anchor nothing shows that it was there"
    )
    result = holdfast("audit", "verify", "--store", path, "--expect", digest)
    assert result.exit_code == 1
    assert digest in result.stderr


def test_verify_holds_an_anchor_against_what_is_there(path, tmp_path):
    anchor = tmp_path / "anchor.json"
    anchor.write_text(holdfast("audit", "verify", "--store", path, "--json").stdout)
    assert holdfast("audit", "verify", "--store", path, "--anchor", str(anchor)).exit_code == 0
    tamper(path, "DELETE FROM chain WHERE name = 'session:s1'")
    result = holdfast("audit", "verify", "--store", path, "--anchor", str(anchor))
    assert result.exit_code == 1
    assert "the whole chain is gone" in result.stdout


def test_an_anchor_that_is_none_is_refused(path, tmp_path):
    (tmp_path / "anchor.json").write_text("[1, 2]")
    result = holdfast("audit", "verify", "--store", path, "--anchor", str(tmp_path / "anchor.json"))
    assert result.exit_code == 2
    assert "--anchor: expected the output of `holdfast audit verify --json`" in result.stderr
    result = holdfast("audit", "verify", "--store", path, "--anchor", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr


# Exporting


def test_export_can_be_verified_without_the_store(path):
    result = holdfast("audit", "export", "--store", path)
    lines = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in result.stdout.encode().splitlines()]
    whole = [json.loads(line) for line in result.stdout.splitlines()]
    assert places(whole) == [*(("runtime", n) for n in range(1, 5)), ("session:s1", 1)]
    chain = [
        AuditRecord(
            **{key: line[key] for key in ("chain", "seq", "at", "correlation", "hash")}, kind=line["class"], payload=raw["payload"]
        )
        for line, raw in zip(whole, lines, strict=True)
        if line["chain"] == "runtime"
    ]  # fmt: skip
    assert verify(chain)[::2] == (4, None)
    digest = json.loads(holdfast("audit", "verify", "--store", path, "--json").stdout)["digest"]
    assert f"digest {digest}" in result.stderr


def test_export_of_an_encrypted_store_can_be_verified_without_its_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WORK_KEY", "01" * 32)
    url = f"sqlite:{tmp_path}/work.db?key_env=WORK_KEY"

    async def work():
        async with open_store(url) as store:
            record = NewAudit(kind="Turn", correlation="r", payload=b'{"a":"readable"}')
            await store.commit(Commit(chain="work", audit=(record, record)))

    asyncio.run(work())
    result = holdfast("audit", "export", "--store", url)
    whole = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["payload"] for line in whole] == [{"a": "readable"}] * 2
    lines = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in result.stdout.encode().splitlines()]
    chain = [
        AuditRecord(
            **{key: line[key] for key in ("chain", "seq", "at", "correlation", "hash")}, kind=line["class"], payload=raw["stored"]
        )
        for line, raw in zip(whole, lines, strict=True)
    ]  # fmt: skip
    assert verify(chain)[::2] == (2, None)
    assert holdfast("audit", "verify", "--store", url.partition("?")[0]).exit_code == 0


def test_export_filters_and_reports_a_broken_chain_after_all_of_it(path):
    assert len(holdfast("audit", "export", "--store", path, "--session", "s1").stdout.splitlines()) == 1
    assert holdfast("audit", "export", "--store", path, "--session", "s1", "--chain", "runtime").stdout == ""
    tamper(path, "UPDATE audit SET payload = 'no json' WHERE seq = 2")
    result = holdfast("audit", "export", "--store", path)
    assert result.exit_code == 1
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [1, 2, 3, 4, 1]
    assert "breaks at record 2" in result.stderr


def test_a_broken_record_is_shown_as_it_is(path):
    tamper(path, "UPDATE audit SET payload = 'no json', at = 'noon' WHERE seq = 4")
    found = records("query", "--store", path, "--class", "Fault")
    assert [(record["at"], record["payload"]) for record in found] == [("noon", "no json")]
    assert len(records("query", "--store", path)) == len(records("tail", "--store", path)) == 5
    assert len(records("query", "--store", path, "--since", "2026-01-01T00:00:00Z")) == 4


def test_secrets_that_got_in_are_not_shown(path, monkeypatch):
    """The store masks what it knows; a key that only this shell knows is masked when it is shown."""
    tamper(path, f'UPDATE audit SET payload = \'{{"note":"{KEY}"}}\' WHERE seq = 1')
    for form in ("--json", "--jsonl"):
        assert KEY not in holdfast("audit", "query", "--store", path, form).stdout
    assert KEY not in holdfast("audit", "tail", "--store", path).stdout


# A store in use


def commit(path, *records):
    async def write():
        async with SqliteStore(path) as store:
            await store.commit(Commit(chain="runtime", audit=records))

    asyncio.run(write())


def test_the_real_command_follows_a_store_that_another_process_writes(path):
    command = [SCRIPT, "audit", "tail", "-n", "1", "--follow", "--jsonl", "--store", path]
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    with running(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = json.loads(process.stdout.readline())
        commit(path, audit("Alert", "run-9", level="critical"))
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        status = process.wait(10)
    assert places([first, second]) == [("runtime", 4), ("runtime", 5)]
    assert (second["class"], second["payload"], status) == ("Alert", {"level": "critical"}, 130)


def test_FD12_verify_reads_a_copy_that_may_not_be_written_to(path, tmp_path):
    copy = tmp_path / "safe" / "copy.db"
    copy.parent.mkdir()
    copy.write_bytes(Path(path).read_bytes())
    copy.chmod(0o400)
    before = sorted(tmp_path.rglob("*"))
    result = holdfast("audit", "verify", "--store", f"sqlite:{copy}?mode=ro", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["records"] == 5
    assert sorted(tmp_path.rglob("*")) == before
