"""The control socket: what another process of the same user sees of a tree, and what everybody else does not."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from holdfast import Actor, Backoff, Supervisor
from holdfast.actors import Child, control
from holdfast.actors import control_socket as module
from holdfast.actors import tree as tree_module
from holdfast.actors.control_socket import ANSWER_BYTES, REQUEST
from holdfast.faults import InvalidError

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch):
    # Not pytest's own folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    rmtree(folder)


class Counter(Actor):
    async def add(self) -> None: ...

    async def fail(self) -> None:
        raise ConnectionResetError("gone")

    async def block(self) -> None:
        await asyncio.Event().wait()


class Parent(Actor):
    async def started(self) -> None:
        team = await self.children()
        await team.start(Counter)


async def idle() -> None:
    await asyncio.Event().wait()


async def send(path: Path, line: bytes = REQUEST) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(path, limit=ANSWER_BYTES + 1)
    writer.write(line)
    if not line.endswith(b"\n"):
        writer.write_eof()
    try:
        return json.loads(await reader.readline())
    finally:
        writer.close()
        await writer.wait_closed()


async def nodes(path: Path) -> dict[str, dict[str, Any]]:
    """Every node of the tree by its name."""
    found: dict[str, dict[str, Any]] = {}

    def collect(node: dict[str, Any]) -> None:
        found[node["name"]] = node
        for child in node["children"]:
            collect(child)

    for root in (await send(path))["tree"]["roots"]:
        collect(root)
    return found


async def until(path: Path, name: str, state: str) -> dict[str, dict[str, Any]]:
    """The nodes, once one of them has this state."""
    while True:
        found = await nodes(path)
        if found[name]["state"] == state:
            return found
        await asyncio.sleep(0.01)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 30))


# What is shown


def test_every_kind_of_child_is_shown_with_its_place(runtime_dir):
    async def main():
        inner = Supervisor("workers", strategy="one_for_all", scope="child", children=[idle, idle])
        team = Supervisor("team", children=[Child(idle), inner, Child(["sleep", "100"]), Child(Counter), Parent])
        async with team, control(team) as path:
            counter = (await team.which_children())[3].ref
            counter.tell(Counter.block)
            counter.tell(Counter.add)
            await asyncio.sleep(0.01)
            answer = await send(path)
            return answer["tree"], await nodes(path)

    tree, found = run(main())
    assert tree["pid"] == os.getpid()
    (team,) = tree["roots"]
    assert [child["name"] for child in team["children"]] == ["idle", "workers", "sleep", "Counter", "Parent"]
    assert [child["kind"] for child in team["children"]] == ["task", "supervisor", "command", "actor", "actor"]
    assert (team["state"], team["incarnation"]) == ("running", 1)
    assert (team["restarts_left"], team["max_restarts"], team["window"]) == (3, 3, 60.0)
    assert 0 <= team["uptime"] < 30
    # Each child of `workers` has a budget of its own.
    assert found["workers"]["max_restarts"] is None
    assert found["idle-2"]["restarts_left"] == 3
    assert found["sleep"]["waiting"] is None
    # An actor's own children are below it.
    assert [child["name"] for child in found["Parent"]["children"]] == ["Counter"]
    waits = next(child for child in team["children"] if child["name"] == "Counter")
    assert (waits["waiting"], waits["capacity"], waits["last_failure"]) == (1, 1000, None)


def test_a_child_that_waits_for_its_restart(runtime_dir):
    async def main():
        async with Supervisor("team") as team, control(team) as path:
            counter = await team.start(Counter, on={"CONN_RESET": "restart"}, backoff=Backoff(initial=50, cap=100))
            await counter.outcome(Counter.fail)
            return await until(path, "Counter", "restarting")

    found = run(main())
    assert found["Counter"]["state"] == "restarting"
    assert (found["Counter"]["incarnation"], found["Counter"]["uptime"]) == (1, None)
    assert found["Counter"]["last_failure"] == "CONN_RESET"
    assert found["team"]["restarts_left"] == 2


def test_a_child_whose_restart_takes_long_is_restarting_and_not_stopped(runtime_dir):
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Actor):
        async def started(self) -> None:
            if self.ref.restarts:
                begun.set()
                await go.wait()

        async def fail(self) -> None:
            raise KeyError

    async def main():
        async with Supervisor("team") as team, control(team) as path:
            slow = await team.start(Slow)
            await slow.outcome(Slow.fail)
            await begun.wait()
            during = (await nodes(path))["Slow"]
            go.set()
            return during, (await until(path, "Slow", "running"))["Slow"]

    during, after = run(main())
    assert (during["state"], during["incarnation"]) == ("restarting", 1)
    assert after["incarnation"] == 2


def test_a_supervisor_that_is_not_open_or_has_given_up_is_stopped(runtime_dir):
    async def broken() -> None:
        raise ConnectionResetError("gone")

    async def main():
        closed, fails = Supervisor("closed"), Supervisor("fails", max_restarts=0)
        async with control(closed, fails) as path:
            try:
                async with fails:
                    await fails.start(broken)
                    await asyncio.Event().wait()
            except Exception:
                return await nodes(path)

    found = run(main())
    assert (found["closed"]["state"], found["closed"]["incarnation"]) == ("stopped", 0)
    assert (found["fails"]["state"], found["fails"]["last_failure"]) == ("stopped", "ACTOR_MAX_RESTARTS")


def test_a_long_tree_is_cut_and_the_loop_goes_on_meanwhile(runtime_dir, monkeypatch):
    monkeypatch.setattr(tree_module, "MOST_NODES", 2000)
    gaps: list[float] = []

    async def tick() -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            gaps.append(loop.time() - last)
            last = loop.time()

    async def main():
        async with Supervisor("many", strategy="simple_one_for_one", children=[idle]) as many, control(many) as path:
            for _ in range(2500):
                await many.spawn()
            ticker = asyncio.create_task(tick())
            await asyncio.sleep(0)
            (root,) = (await send(path))["tree"]["roots"]
            ticker.cancel()
            await asyncio.wait({ticker})
            return root

    root = run(main())
    assert (len(root["children"]), root["left_out"]) == (2000, 500)
    # 2,000 nodes in slices of 100, and then the answer. Without slices there would be one gap.
    assert len(gaps) > 20


# Who may look


def make_link(folder: Path) -> None:
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "holdfast").symlink_to(folder / "elsewhere")


def make_loose(folder: Path) -> None:
    (folder / "holdfast").mkdir()
    (folder / "holdfast").chmod(0o750)


def make_foreign(folder: Path) -> None:
    (folder / "holdfast").mkdir(mode=0o700)
    os.chown(folder / "holdfast", NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (make_link, "got a link"),
        (make_loose, "got mode 0750"),
        (lambda folder: (folder / "holdfast").touch(), "got a file"),
        pytest.param(make_foreign, f"got a folder of user {NOBODY}", marks=needs_root),
    ],
    ids=["link", "loose", "file", "foreign"],
)
def test_a_folder_that_others_could_use_is_rejected(runtime_dir, make, got):
    make(runtime_dir)

    async def main():
        async with Supervisor("team") as team, control(team):
            pytest.fail("it opened a socket")

    with pytest.raises(InvalidError, match=got):
        run(main())
    assert not list(runtime_dir.rglob("*.sock"))


def test_the_folder_and_the_socket_are_for_the_owner_alone(runtime_dir):
    async def main():
        async with Supervisor("team") as team, control(team) as path:
            return path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777, path

    folder, mode, path = run(main())
    assert (folder, mode) == (0o700, 0o600)
    assert not path.exists()


async def as_nobody(path: Path) -> bytes:
    """What another user gets from the socket, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        heard = b"?"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(10)
                connection.connect(str(path))
                connection.sendall(REQUEST)
                heard = connection.recv(65536)
        except OSError as error:
            heard = type(error).__name__.encode()
        finally:
            os.write(writing, heard)
            os._exit(0)
    os.close(writing)
    # Not in a thread: a process with threads should not fork.
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if os.waitpid(child, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not wait
            break
    with os.fdopen(reading, "rb") as file:
        return file.read()


@needs_root
def test_another_user_cannot_reach_the_socket_and_is_rejected_if_it_can(runtime_dir):
    async def main():
        async with Supervisor("team") as team, control(team) as path:
            kept_out = await as_nobody(path)
            # Somebody loosens everything afterwards: the user is still checked.
            for place in (runtime_dir, path.parent, path):
                place.chmod(0o777)
            return kept_out, await as_nobody(path)

    kept_out, rejected = run(main())
    assert kept_out == b"PermissionError"
    answer = json.loads(rejected)
    assert answer["is_denied"]
    assert "tree" not in answer


# Whatever arrives


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"\xff\xfe\x00garbage\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"show":"secrets"}\n',
        b'{"show":"tree","kill":1}\n',
        b"[" * 1000 + b"\n",
        b"x" * 5000,
        b'{"show":"' + b"x" * 5000 + b'"}\n',
    ],
    ids=["nothing", "newline", "bytes", "http", "other", "more", "nested", "endless", "long"],
)
def test_garbage_gets_an_error_and_the_socket_goes_on(runtime_dir, line):
    async def main():
        async with Supervisor("team") as team, control(team) as path:
            return await send(path, line), await send(path)

    garbage, good = run(main())
    assert garbage["error"]
    assert "tree" not in garbage
    assert good["tree"]["roots"]


def test_a_silent_client_is_cut_off(runtime_dir, monkeypatch):
    monkeypatch.setattr(module, "_ANSWER_S", 0.05)

    async def main():
        async with Supervisor("team") as team, control(team) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            heard = await reader.read()
            writer.close()
            return heard

    assert run(main()) == b""


def test_too_many_clients_are_turned_away_and_the_end_cuts_the_others_off(runtime_dir):
    async def main():
        async with Supervisor("team") as team:
            async with control(team) as path:
                clients = [await asyncio.open_unix_connection(path) for _ in range(8)]
                await asyncio.sleep(0.01)
                ninth, writer = await asyncio.open_unix_connection(path)
                assert await ninth.read() == b""
                writer.close()
            for reader, writer in clients:
                assert await reader.read() == b""
                writer.close()
            return path

    assert not run(main()).exists()


# Several sockets, and old ones


def test_a_process_may_have_several_sockets(runtime_dir):
    async def main():
        async with Supervisor("one") as one, Supervisor("two") as two, control(one) as first, control(two) as second:
            return first.name, second.name, list(await nodes(first)), list(await nodes(second))

    assert run(main()) == (f"{os.getpid()}-1.sock", f"{os.getpid()}-2.sock", ["one"], ["two"])


def test_the_socket_of_a_dead_process_with_the_same_number_is_replaced(runtime_dir):
    folder = runtime_dir / "holdfast"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / f"{os.getpid()}-1.sock"))

    async def main():
        async with Supervisor("team") as team, control(team) as path:
            return path.name, list(await nodes(path))

    assert run(main()) == (f"{os.getpid()}-1.sock", ["team"])
    assert list(folder.iterdir()) == []


def test_the_folder_of_another_user_in_the_environment_is_not_used(runtime_dir, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(runtime_dir))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/folder")
    assert module.folders() == [runtime_dir / f"holdfast-{os.geteuid()}"]


def test_a_path_that_is_too_long_is_named(runtime_dir, monkeypatch):
    deep = runtime_dir / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    async def main():
        async with Supervisor("team") as team, control(team):
            pytest.fail("it opened a socket")

    with pytest.raises(InvalidError, match="at most 103 bytes"):
        run(main())


@pytest.mark.parametrize("given", [(), ("team",), (Supervisor,)])
def test_anything_but_supervisors_is_rejected(given):
    async def main():
        async with control(*given):
            pytest.fail("it opened a socket")

    with pytest.raises(InvalidError, match="one or more supervisors"):
        run(main())


def test_a_supervisor_of_another_event_loop_is_not_looked_at(runtime_dir):
    async def look(other: Supervisor):
        async with control(other) as path:
            return await send(path)

    async def main():
        async with Supervisor("team") as team:
            return await asyncio.to_thread(run, look(team))

    assert "another loop" in run(main())["error"]
