"""`run`: start a program, read what it prints, and end it with everything that it has started.

    finished = await run(["git", "status"], timeout=30)

    async with run(["npm", "test"], idle=60) as process:
        async for chunk in process:
            ...

asyncio's own processes have two traps that this module avoids. `wait` returns only when nobody holds the pipes any more, so a
background job of the command keeps its caller waiting. And the process id is given back before its group can be ended. Here the
exit is noticed through a descriptor of the process, the group is ended while the id is still held, and only then the process is
reaped.

Invariant: when `run` returns, raises or is cancelled, no process of the command's tree is alive (`process_tree` says which are
found), none is a zombie, and no descriptor is open. It never waits for a pipe that somebody else holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast._platform import need_posix, need_selector_loop
from holdfast.faults import InvalidError
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.tools.command import Command
from holdfast.tools.guard import guarded_owner, note_end, note_start, owner_if_possible
from holdfast.tools.output import Chunk, KeptOutput, LineSplitter
from holdfast.tools.process_error import Finished, ProcessError, StopReason, failure_of, not_started
from holdfast.tools.process_mark import (
    MARK,
    behind_gate,
    born_with,
    is_startable,
    new_mark,
    of_outer_command,
    open_gate,
)
from holdfast.tools.process_tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from holdfast.tools.command import RunOptions
    from holdfast.tools.output import StreamName

__all__ = ["Process", "Run", "run"]

_READ_BYTES = 65_536
_QUEUED_BYTES = 1_048_576
"""How much unread output is held for a reader. A process that prints more waits until the reader has caught up."""
_LINES_AT_ONCE = 512
"""So many lines are passed on before the event loop has its turn."""
_LINGER_S = 0.5
"""After the main process has ended, its background jobs may finish their output for so long."""
_LEFTOVER_GRACE_S = 0.4
"""How long background jobs have to end after SIGTERM."""
_KILLED_S = 2.0
"""A process that lives so long after SIGKILL hangs in the kernel. It is reported as leaked, and nobody waits for it."""
_LONGEST_POLL_S = 0.25
_FINAL_REAP_S = 0.5
"""How long the event loop is blocked at most, when it is closed while a process is being ended."""
_FINAL_POLL_S = 0.002
_BEFORE_DEADLINE = 0.05
"""The share of the time to an ambient deadline that is kept back, so that the process is gone when the deadline comes."""


def run(command: Sequence[str | os.PathLike[str]], **given: Unpack[RunOptions]) -> Run:
    """Run a program. `await` it for the result, or enter it with `async with` to read the output as it comes.

        from holdfast.tools import run

        finished = await run(["git", "log", "--oneline"], timeout=30)
        print(finished.stdout)

        async with run(["pytest"], idle=120) as process:
            async for line in process.lines():
                print(line)

    command: the program and its arguments. There is no shell: write `["bash", "-c", text]` for one.
    input: what the program reads from its standard input, which then ends. `stdin="pipe"` lets you write to it with
        `process.write`, and `"inherit"` passes on the input of this process. By default it is empty.
    cwd: the directory that it starts in.
    env: variables to add to the environment. Variables of this process that hold secrets are left out, unless `pass_secrets`
        names them. `inherit_env=False` passes only PATH and `env`.
    start, idle, timeout: seconds until the first output, between two outputs, and in all. Each has its own timer. The deadline
        around (of a `Budget` or a recovery) holds too.
    grace: seconds between SIGTERM and SIGKILL, for the whole tree of processes (5).
    keep: bytes of each stream that are kept, half of them from the beginning and half from the end (1 MiB).
    output_cap: bytes of output in all after which the program is stopped (64 MiB); None: any number.
    check: raise if the exit code is not 0 (True).
    leftovers: what happens to processes that the program leaves running when it ends. They are killed, or with `"leave"` left
        and listed in `Finished.leftovers`.
    guarded: end the program, and all that it has started, also if this process is killed or crashes. A small shell for each process
        waits for that. By default wherever that can be done (Linux), unless `leftovers="leave"`; True raises where it cannot.

    Raises `ProcessError`, which holds a classified fault and all output so far, if the program cannot be started, fails, or is
    stopped; after a limit it is a `TimeoutError` too. Wrong options raise `InvalidError`. If the caller is cancelled, or leaves
    the block, the program is ended first.
    """
    return Run(Command.of(command, given))


class Run:
    """What `run` returns: not started yet. Await it, or enter it with `async with`. Each time, it starts the program anew."""

    __slots__ = ("_entered", "command")

    def __init__(self, command: Command) -> None:
        self.command = command
        self._entered: dict[asyncio.Task[Any] | None, Process] = {}
        """The processes of `async with` blocks, by the task that entered them."""

    def __repr__(self) -> str:
        # `asyncio.run(run([…]))` shows it in its error.
        return f"<run of {self.command.argv[0]!r}, not started: await it in an async function, or enter it with `async with`>"

    def __await__(self) -> Generator[Any, None, Finished]:
        return self._whole().__await__()

    async def _whole(self) -> Finished:
        process = Process(self.command)
        try:
            return await process.finished()
        finally:
            await process.stop()

    async def __aenter__(self) -> Process:
        task = asyncio.current_task()
        if task in self._entered:
            raise InvalidError.saying("run", "a `run(…)` of its own for each block", "one that is entered already")
        process = self._entered[task] = Process(self.command)
        return process

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop(asyncio.current_task()).stop()


class Process:
    """A running program. Read it with `async for`, `lines()` or `finished()`; only one reader at a time.

    async with run(["claude", "-p", prompt]) as process:
        async for line in process.lines():
            print(line)
    """

    def __init__(self, command: Command) -> None:
        need_posix("running a program")
        loop = self._loop = asyncio.get_running_loop()
        need_selector_loop("running a program", loop)
        self.command = command
        self._began = loop.time()
        self._is_guarded = False
        self._mark = new_mark(self._guard())
        if command.leftovers == "leave" and not self._is_guarded:
            self._mark = of_outer_command(self._mark)
        self._is_gated = False
        self._popen = self._spawn()
        if self._is_guarded:
            note_start()
        self.pid = self._popen.pid
        self._tree = ProcessTree(self.pid, self._mark)
        if self._is_gated:
            open_gate(self.pid)
        self._kept: dict[StreamName, KeptOutput] = {name: KeptOutput(command.keep) for name in ("stdout", "stderr")}
        self._open: dict[int, StreamName] = {}
        self._queue: deque[Chunk] = deque()
        self._queued = 0
        self._is_read = True
        """Somebody may read the output piece by piece, so it is queued. `finished` ends that."""
        self._is_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._unwritten = bytearray()
        self._input_ends = command.input is not None
        """Nothing more is written after what is waiting now."""
        self._drained: asyncio.Future[None] | None = None
        self._exit_code: int | None = None
        self._exited: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[Finished] = loop.create_future()
        self._stopping: asyncio.Task[None] | None = None
        self._reason: StopReason | None = None
        self._leftovers: tuple[int, ...] = ()
        self._leaked: tuple[int, ...] = ()
        self._last_output: float | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._paused_at: float | None = None
        """When the limits were paused; None: they count."""
        self._paused_s = 0.0
        self._watch()
        self._set_limits()

    # --- the start ---

    def _guard(self) -> int | None:
        """Return what the marks of guarded programs have in common; None: nobody ends this one if this process is killed."""
        command = self.command
        if command.guarded is None:
            # What may stay when the program ends may stay when we do.
            owner = owner_if_possible() if command.leftovers == "kill" else None
        else:
            owner = guarded_owner() if command.guarded else None
        self._is_guarded = owner is not None
        return owner

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self.command
        piped = command.stdin == "pipe" or command.input is not None
        stdin = subprocess.PIPE if piped else None if command.stdin == "inherit" else subprocess.DEVNULL
        try:
            return subprocess.Popen(  # noqa: S603 - running programs is the purpose
                self._argv(),
                bufsize=0,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=command.cwd,
                env={**command.env, MARK: self._mark.text},
                # A session of its own: the group can be ended as a whole, and Ctrl-C in the terminal reaches only us.
                start_new_session=True,
            )
        except OSError as error:
            raise not_started(command.argv, command.cwd, error) from error

    def _argv(self) -> Sequence[str]:
        """Return what is started, so that the program has its mark before it can start anything itself."""
        command = self.command
        if not is_startable(command.argv, command.cwd, command.env):
            return command.argv
        if (marked := born_with(self._mark, command.argv)) is not None:
            return marked
        self._is_gated = (command.guarded is True or command.waits_for_mark) and os.access("/bin/sh", os.X_OK)
        return behind_gate(command.argv) if self._is_gated else command.argv

    def _watch(self) -> None:
        """Let the event loop tell when there is output and when the process has ended."""
        popen, loop = self._popen, self._loop
        pipes: tuple[tuple[StreamName, Any], ...] = (("stdout", popen.stdout), ("stderr", popen.stderr))
        for name, pipe in pipes:
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._open[pipe.fileno()] = name
            loop.add_reader(pipe.fileno(), self._readable, pipe.fileno())
        if popen.stdin is not None:
            os.set_blocking(popen.stdin.fileno(), False)
            if self.command.input is not None:
                self._send(self.command.input)
                if not self._unwritten:
                    self._close_stdin()
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # Only Linux has descriptors of processes. Elsewhere a thread waits.
            self._descriptor = -1
            threading.Thread(target=self._wait_in_thread, name=f"holdfast-wait-{self.pid}", daemon=True).start()
        else:
            loop.add_reader(self._descriptor, self._has_exited)

    def _set_limits(self) -> None:
        command = self.command
        for limit in ("start", "idle", "timeout"):
            seconds = getattr(command, limit)
            if seconds is not None:
                self._timers[limit] = self._loop.call_later(seconds, self._check_limit, limit, seconds)
        around = in_force(AMBIENT.get())
        cut = None if around is None else around.cut_on(self._loop.time)
        if cut is not None:
            left = max(0.0, cut - self._loop.time())
            # The scope around cancels whoever still waits at the deadline. The output so far would be lost then.
            left -= min(left * _BEFORE_DEADLINE, 1.0)
            self._timers["deadline"] = self._loop.call_later(left, self._check_limit, "deadline", left)

    # --- reading ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._queue:
            if self._done.done():
                self._raise_failure()
                raise StopAsyncIteration
            if self._reader is not None:
                raise InvalidError.saying("process", "one reader of its output", "a second one at the same time")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        chunk = self._queue.popleft()
        self._queued -= len(chunk.data)
        if self._is_paused and self._queued < _QUEUED_BYTES // 2:
            self._resume()
        return chunk

    async def lines(self, stream: StreamName | None = "stdout") -> AsyncIterator[str]:
        """Yield the lines of a stream, of any length, without their ends; None: the lines of both.

        Raises `ProcessError` after the last line if the program failed.

            async for line in process.lines():
                event = json.loads(line)
        """
        splitters: dict[StreamName, LineSplitter] = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        failure: ProcessError | None = None
        passed = 0
        try:
            async for chunk in self:
                if stream in (None, chunk.stream):
                    for line in splitters[chunk.stream].feed(chunk.data):
                        passed += 1
                        if passed % _LINES_AT_ONCE == 0:
                            # One chunk may hold 30,000 lines. What else the program does must not wait for their reader.
                            await asyncio.sleep(0)
                        yield line
        except ProcessError as error:
            failure = error
        for splitter in splitters.values():
            for line in splitter.end():
                yield line
        if failure is not None:
            raise failure

    async def finished(self) -> Finished:
        """Wait for the end and return it with the kept output. Raises `ProcessError` if the program failed or was stopped.

        finished = await process.finished()
        """
        self._is_read = False
        self._queue.clear()
        self._queued = 0
        if self._is_paused:
            self._resume()
        # Shielded: a caller that is cancelled must not cancel the future that tells the end.
        finished = await asyncio.shield(self._done)
        self._raise_failure()
        return finished

    @property
    def running(self) -> bool:
        """Whether the main process has not ended yet."""
        return self._exit_code is None

    async def wait(self, within: float | None = None) -> bool:
        """Wait until the program and everything that it has started have ended; return whether they have within so many seconds.

        Unlike `finished` it leaves the output to whoever reads it, and raises nothing.

            if not await process.wait(10):
                await process.stop()
        """
        await asyncio.wait((self._done,), timeout=within)
        return self._done.done()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and everything that it has started. Does nothing once the program has ended.

        process.send_signal(signal.SIGINT)
        """
        # Until it is reaped, its id and the id of its group belong to nobody else.
        if self._exit_code is None:
            self._tree.send(number)

    def alive(self) -> None:
        """Tell that the program works although it prints nothing: the idle limit begins anew."""
        self._last_output = self._loop.time()

    @contextmanager
    def limits_paused(self) -> Iterator[None]:
        """Do not count the time of the block for the limits `idle` and `timeout`: the program waits for somebody else.

        with process.limits_paused():
            answer = await session.approve("May it deploy?")
        """
        began = self._paused_at = self._loop.time()
        try:
            yield
        finally:
            self._paused_at = None
            self._paused_s += self._loop.time() - began
            self.alive()

    def _raise_failure(self) -> None:
        finished = self._done.result()
        error = failure_of(finished, self._reason, check=self.command.check)
        if error is not None:
            raise error

    def _readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_pipe(descriptor)
            self._settle()
            return
        self._take(self._open[descriptor], data)

    def _take(self, name: StreamName, data: bytes) -> None:
        self._last_output = self._loop.time()
        if (timer := self._timers.pop("start", None)) is not None:
            timer.cancel()
        self._kept[name].add(data)
        if self._is_read:
            self._queue.append(Chunk(name, data))
            self._queued += len(data)
            self._wake()
            if self._queued > _QUEUED_BYTES and not self._is_paused and self._stopping is None:
                self._pause()
        cap = self.command.output_cap
        if cap is not None and sum(kept.total for kept in self._kept.values()) > cap:
            self._stop_because(StopReason("output", cap))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _pause(self) -> None:
        """Read no more until the reader has caught up. The pipe fills up, and the process waits."""
        self._is_paused = True
        for descriptor in self._open:
            self._loop.remove_reader(descriptor)

    def _resume(self) -> None:
        self._is_paused = False
        # The reader was slow, not the process.
        self.alive()
        for descriptor in self._open:
            self._loop.add_reader(descriptor, self._readable, descriptor)
        if self._exit_code is not None:
            self._begin_linger()

    def _close_pipe(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        name = self._open.pop(descriptor)
        pipe = self._popen.stdout if name == "stdout" else self._popen.stderr
        assert pipe is not None
        pipe.close()

    # --- writing ---

    async def write(self, data: bytes | str) -> None:
        """Write to the program's standard input, with `stdin="pipe"`. Waits while the program does not read.

        Raises `InvalidError` without a pipe. If the program has closed its input, nothing happens: its exit code tells more.

            await process.write(json.dumps(message) + os.linesep)
        """
        if self.write_soon(data):
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            # Shielded: several writers wait for the same moment, and one of them may be cancelled.
            await asyncio.shield(self._drained)

    def write_soon(self, data: bytes | str) -> int:
        """Write as `write` does, without waiting; return how many bytes are held until the program reads.

        For a task that reads the output too: if it waited here, a program that prints much before it reads would wait for it.

            if process.write_soon(answer) > 1_000_000:
                await process.stop()
        """
        if self.command.stdin != "pipe":
            raise InvalidError.saying("process.write", 'a process that was started with stdin="pipe"', "one without")
        self._send(data.encode() if isinstance(data, str) else data)
        return len(self._unwritten)

    def close_input(self) -> None:
        """End the program's standard input, once everything was written.

        process.close_input()
        """
        self._input_ends = True
        if not self._unwritten:
            self._close_stdin()

    def _send(self, data: bytes) -> None:
        pipe = self._popen.stdin
        if pipe is None or pipe.closed:
            return
        was_empty = not self._unwritten
        self._unwritten += data
        if was_empty:
            self._flush()
            if self._unwritten:
                self._loop.add_writer(pipe.fileno(), self._flush)

    def _flush(self) -> None:
        pipe = self._popen.stdin
        assert pipe is not None
        try:
            while self._unwritten:
                written = os.write(pipe.fileno(), self._unwritten[:_READ_BYTES])
                del self._unwritten[:written]
        except BlockingIOError:
            return
        except OSError:
            # The program does not read any more.
            self._unwritten.clear()
        self._loop.remove_writer(pipe.fileno())
        if self._input_ends:
            self._close_stdin()
        self._wrote()

    def _wrote(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _close_stdin(self) -> None:
        pipe = self._popen.stdin
        self._unwritten.clear()
        if pipe is not None and not pipe.closed:
            self._loop.remove_writer(pipe.fileno())
            with suppress(OSError):  # the program has closed its end
                pipe.close()

    # --- limits ---

    def _check_limit(self, limit: Any, seconds: float) -> None:
        """A timer has fired: stop the process, unless it has shown life since the timer was set."""
        left = self._left_of(limit, seconds)
        if left > 1e-6:
            self._timers[limit] = self._loop.call_later(left, self._check_limit, limit, seconds)
            return
        self._stop_because(StopReason(limit, seconds))

    def _left_of(self, limit: str, seconds: float) -> float:
        """Return the seconds that are left of a limit whose timer has fired."""
        now = self._loop.time()
        if limit == "idle":
            # The timer is not set anew for each output. Instead it looks, when it fires, how long the last output is ago.
            since = self._began if self._last_output is None else self._last_output
            return seconds if self._is_paused or self._paused_at is not None else since + seconds - now
        if limit == "timeout":
            paused = self._paused_s + (0.0 if self._paused_at is None else now - self._paused_at)
            return self._began + seconds + paused - now
        return 0.0

    def _stop_because(self, reason: StopReason) -> None:
        if self._reason is None and self._exit_code is None:
            self._reason = reason
            self._begin_stop(self.command.grace)

    # --- the end ---

    async def stop(self, grace: float | None = None) -> None:
        """End the program and everything that it has started: SIGTERM, after the grace SIGKILL. Returns when they are gone.

        If the caller is cancelled meanwhile, SIGKILL follows at once.

            await process.stop()
        """
        if self._done.done() or not self._tree.is_ours:
            return
        if self._reason is None and self._exit_code is None:
            self._reason = StopReason("stopped", None)
        stopping = self._begin_stop(self.command.grace if grace is None else grace)
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            if not stopping.done():
                # Whoever cancels a second time does not want to wait.
                stopping.cancel()
                await asyncio.wait((stopping,))
            raise

    def kill(self) -> None:
        """End the program and everything that it has started with SIGKILL, at once. `wait` returns when they are gone.

        process.kill()
        """
        if self._done.done() or not self._tree.is_ours:
            return
        if self._reason is None and self._exit_code is None:
            self._reason = StopReason("stopped", None)
        self._tree.send(signal.SIGKILL)
        self._begin_stop(None)

    def _begin_stop(self, grace: float | None) -> asyncio.Task[None]:
        """Begin to end the tree: SIGTERM, and SIGKILL after the grace; None: SIGKILL."""
        if self._stopping is None:
            if self._is_paused:
                self._is_read = False
                self._resume()
            self._stopping = self._loop.create_task(self._end_tree(grace))
        return self._stopping

    async def _end_tree(self, grace: float | None) -> None:
        try:
            if grace is not None:
                self._tree.send(signal.SIGTERM)
                # A stopped process handles SIGTERM only when it goes on.
                self._tree.send(signal.SIGCONT)
            if grace is None or not await self._gone_within(grace):
                await self._kill()
        except asyncio.CancelledError:
            self._kill_now()
            raise
        finally:
            self._finish()

    async def _kill(self) -> None:
        """Kill until nobody is left: a process may start another one at the moment it is killed."""
        for _ in range(8):
            self._tree.send(signal.SIGKILL)
            if await self._gone_within(_KILLED_S / 8):
                return
        own = () if self._exit_code is not None else (self.pid,)
        self._leaked = (*own, *(member.pid for member in self._tree.others()))

    def _kill_now(self) -> None:
        """Kill without the event loop, which may be about to close."""
        self._tree.send(signal.SIGKILL)
        until = time.monotonic() + _FINAL_REAP_S
        # A killed process takes a moment to end. The root is reaped last: until then nobody else has its id.
        while self._tree.others() and time.monotonic() < until:
            time.sleep(_FINAL_POLL_S)
            self._tree.send(signal.SIGKILL)
        if self._exit_code is None:
            with suppress(subprocess.TimeoutExpired):  # the exit code stays unknown, and the result says so
                self._popen.wait(_FINAL_REAP_S)
                self._exit_code = self._popen.returncode

    async def _gone_within(self, seconds: float) -> bool:
        """Wait until the main process and all others have ended; return whether they have in time."""
        until = self._loop.time() + seconds
        pause = 0.005
        while not self._is_gone():
            left = until - self._loop.time()
            if left <= 0:
                return False
            if self._exit_code is None:
                await asyncio.wait((self._exited,), timeout=left)
            else:
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_POLL_S)
        return True

    def _is_gone(self) -> bool:
        if self._exit_code is None:
            return False
        # Where the root is reaped already, a group that still exists has other members.
        return not self._tree.others() if self._tree.sees_all else not self._tree.group_lives()

    def _has_exited(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            # Not reaped yet: as long as it is a zombie, its id and the id of its group belong to nobody else.
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # Somebody else in this program has reaped it. The exit code is lost; asyncio reports 255, too.
            self._ended_with(255)
            return
        assert ended is not None
        self._ended_with(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

    def _wait_in_thread(self) -> None:
        code = self._popen.wait()
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._ended_with, code)

    def _ended_with(self, code: int) -> None:
        if self._exit_code is not None:
            return
        self._exit_code = code
        if not self._exited.done():
            self._exited.set_result(None)
        self._begin_linger()
        self._settle()

    def _begin_linger(self) -> None:
        if "linger" not in self._timers and not self._is_paused:
            self._timers["linger"] = self._loop.call_later(_LINGER_S, self._end_leftovers)

    def _settle(self) -> None:
        """Finish if the main process and its pipes have ended and nothing else runs."""
        if self._exit_code is None or self._open or self._stopping is not None or self._done.done():
            return
        if self._is_gone():
            self._finish()

    def _end_leftovers(self) -> None:
        """The main process ended a moment ago, but others still run or hold its pipes."""
        if self._stopping is not None or self._done.done():
            return
        self._leftovers = tuple(member.pid for member in self._tree.others())
        if self.command.leftovers == "leave":
            self._finish()
        else:
            self._begin_stop(min(_LEFTOVER_GRACE_S, self.command.grace))

    def _finish(self) -> None:
        """Everything has ended: read what is left in the pipes, release all, tell the result."""
        if self._done.done():
            return
        for timer in self._timers.values():
            timer.cancel()
        for descriptor in tuple(self._open):
            self._drain(descriptor)
            self._close_pipe(descriptor)
        self._close_stdin()
        self._wrote()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._exit_code is not None:
            self._popen.wait()
            # `wait` stores another code where somebody else has reaped it.
            self._popen.returncode = self._exit_code
        if self._is_guarded and not self._leaked:
            note_end()
        self._done.set_result(self._result())
        self._wake()

    def _drain(self, descriptor: int) -> None:
        """Take what is in a pipe already. Whoever still holds its other end is not waited for."""
        for _ in range(64):
            try:
                data = os.read(descriptor, _READ_BYTES)
            except OSError:
                return
            if not data:
                return
            self._take(self._open[descriptor], data)

    def _result(self) -> Finished:
        kept = self._kept
        return Finished(
            command=self.command.argv,
            exit_code=-signal.SIGKILL if self._exit_code is None else self._exit_code,
            stdout=kept["stdout"].text(),
            stderr=kept["stderr"].text(),
            took=self._loop.time() - self._began,
            truncated=any(one.truncated for one in kept.values()),
            leftovers=self._leftovers,
            leaked=self._leaked,
        )

    def __del__(self) -> None:
        # Nobody stopped it, for example because the event loop was closed. It must not outlive us.
        popen = self.__dict__.get("_popen")
        if popen is None or popen.returncode is not None or self._done.done():
            return
        # Python ignores what a finalizer raises anyway, and prints it.
        with suppress(Exception):
            self._tree.send(signal.SIGKILL)
            popen.wait(_FINAL_REAP_S)
        for pipe in (popen.stdin, popen.stdout, popen.stderr):
            if pipe is not None:
                pipe.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
