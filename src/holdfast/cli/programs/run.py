"""`holdfast run -- CMD`: run a command with limits, classify how it failed, and repeat it where that may be done.

    holdfast run --retries 3 --timeout 10m -- pip install holdfast

Invariant: the command's input and output pass unchanged, and its own exit code is ours. It is repeated only if the caller asked
for that, or if it was never started. However this process ends, nothing of the command is left running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import PurePath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from holdfast import options
from holdfast.classify.times import parse_duration
from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, one_line, show_json
from holdfast.events import Retry
from holdfast.faults import InvalidError
from holdfast.policies.decide import Effect, is_repeatable
from holdfast.policies.target import target_of
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.sinks.live import LiveWord, watch_live
from holdfast.tools import Finished, Process, ProcessError, ProcessTimeoutError, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from holdfast.cli.app import RunFlags
    from holdfast.events import Event
    from holdfast.faults import Fault
    from holdfast.sinks.live import LiveLine

EFFECTS: tuple[Effect, ...] = ("read", "idempotent", "unsafe")
_ATTEMPTS = 3
"""Calls in all of a command that may be repeated, where neither the command line nor the settings name a number."""
_KEPT_BYTES = 65_536
"""How much of the output is kept to classify a failure."""
_REPLAY_BYTES = 67_108_864
"""How much of a piped input is kept for the next attempt. A command that reads more is not repeated."""
_READ_BYTES = 65_536
_LAST_WORDS_S = 1.0
"""How long an interrupted command's last output may take to be written. Its reader may have gone with the same signal."""
_TIMED_OUT, _NOT_STARTED, _NOT_FOUND = 124, 126, 127
"""As `timeout`, `env` and shells have them. Programs keep away from these numbers, and use low ones for what they mean themselves."""
_BY_SIGNAL = 128
"""What shells add to the number of the signal that ended a program."""
# Not every system has all of them.
_ENDING = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"))
_PASSING = tuple(number for number in signal.Signals if number.name in ("SIGUSR1", "SIGUSR2"))
# Killed processes are retried once, as the policy has it: a program that ran out of memory will do so again.
_ONCE = frozenset({"TOOL_KILLED", "TOOL_OUT_OF_MEMORY", "TOOL_CRASHED"})


def seconds_of(flag: str, text: str | None, *, zero: bool = False) -> float | None:
    """Return the seconds of a duration such as `90`, `90s` or `5m`. Raises `InvalidError` that names the flag."""
    if text is None:
        return None
    seconds: float | None = None
    with suppress(ValueError):  # not a plain number: it is read as a duration below
        seconds = float(text)
    if seconds is None or not 0 <= seconds < float("inf"):
        seconds = parse_duration(text)
    if seconds is None:
        raise InvalidError.at(flag, "seconds, or a duration such as 90s or 5m", text)
    if not seconds and not zero:
        raise InvalidError.at(flag, "more than 0 seconds, such as 90, 90s or 5m", text)
    return seconds


def _count_of(flag: str, text: str | None) -> int | None:
    """Return a whole number. Raises `InvalidError` that names the flag."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidError.at(flag, "a whole number from 0, such as 3", text)
    return int(text)


def run_command(*, command: Sequence[str], flags: RunFlags) -> int:
    """Run the command, and return the exit code for the shell: its own, or ours if it was stopped or not started."""
    return asyncio.run(_Runner(tuple(command), flags).main())


class _Runner:
    """One run of `holdfast run`: its attempts, and the signals that come meanwhile."""

    def __init__(self, command: tuple[str, ...], flags: RunFlags) -> None:
        self._command = command
        self._flags = flags
        self._retries = _count_of("--retries", flags.retries)
        self._idle = seconds_of("--idle", flags.idle)
        self._grace = seconds_of("--grace", flags.grace, zero=True) or 0.0
        timeout = seconds_of("--timeout", flags.timeout)
        self._effect = cast("Effect | None", flags.effect)
        if self._effect is not None:
            options.one_of("--effect", self._effect, EFFECTS)
        self._is_repeatable = bool(self._retries) if self._effect is None else is_repeatable(self._effect)
        """Whether a command that has run may run again. `--retries` says so, unless `--effect` says otherwise."""
        self._runtime = default_runtime()
        self._target = target_of(flags.target or f"tool:{PurePath(command[0]).name or command[0]}", "--target")
        configured = self._runtime.policy_for(self._target)
        if not self._runtime.has_policy_for(self._target):
            # The settings do not name this command. Their limits are for calls, and would cut a long build.
            configured = configured.replace(timeout=None, deadline=None)
        attempts = self._retries + 1 if self._retries is not None else configured.attempts or _ATTEMPTS
        # A fresh process knows nothing about other runs, so a circuit could only come between the attempts of this one. And a
        # command may take longer than anybody waits for an answer of a model: its retries are limited by number.
        self._policy = configured.replace(attempts=attempts, timeout=None, patience=None, circuit=None)
        # A limit that the settings name for this command is for each attempt, as --timeout is.
        self._timeout = timeout if timeout is not None else configured.timeout
        self._input = _Input.of(sys.stdin, replay=self._is_repeatable)
        self._out = _Outlet(sys.stderr if flags.as_json else sys.stdout)
        self._err = _Outlet(sys.stderr)
        self._attempts: list[dict[str, Any]] = []
        self._process: Process | None = None
        self._signal: signal.Signals | None = None
        self._ending: asyncio.Task[None] | None = None

    async def main(self) -> int:
        """Run the command, and say how it ended."""
        began = time.monotonic()
        error: ProcessError | None = None
        self._main = asyncio.current_task()
        with self._signals():
            try:
                async with self._watched():
                    status = await self._recovered()
            except ProcessError as failed:
                error, status = failed, self._status_of(failed)
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
                status = _BY_SIGNAL + self._signal
            finally:
                self._out.close()
                self._err.close()
        if self._flags.as_json:
            show_json(self._document(error, status, time.monotonic() - began))
        # The person who interrupts a command knows why it has ended.
        if error is not None and self._signal is None and not self._flags.quiet:
            self._report(error)
        return status

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Show the retries while the block runs, and write everything to the audit trail if there is one."""
        async with AsyncExitStack() as stack:
            if self._flags.store is not None:
                # Imported here, because they would double the time that a command without them takes to start.
                from holdfast.sinks.audit import audit_to
                from holdfast.stores import open_store

                store = await stack.enter_async_context(open_store(self._flags.store))
                await stack.enter_async_context(audit_to(store, self._runtime, attempts=True))
            stack.enter_context(watch_live(self._narrate, self._runtime))
            stack.enter_context(self._runtime.bus.subscribe(self._delayed, (Retry,)))
            yield

    async def _recovered(self) -> int:
        recovery = recover(
            self._target,
            self._policy,
            # `unsafe` would raise another error in place of the command's own. `_is_final` keeps the promise for it.
            effect=(self._effect or "idempotent") if self._is_repeatable else None,
            retry_on=self._may_retry,
            never_retry=self._is_final,
            runtime=self._runtime,
        )
        return await recovery.call(self._attempt)

    def _may_retry(self, error: Exception) -> bool:
        """Whether to repeat a command after a failure that the classifier calls final, or retries only once."""
        if not isinstance(error, ProcessError) or not self._retries:
            return False
        fault = error.fault
        # Nothing is known about a plain exit code. With retries, the user hopes that the next run ends better.
        return fault.code == "TOOL_EXECUTION_FAILED" or (fault.retryable and fault.code not in _ONCE)

    def _is_final(self, error: Exception) -> bool:
        """Whether another attempt is not allowed, whatever the failure is."""
        if self._signal is not None:
            return True
        # What a command printed last does not say what it did before. It surely did nothing only if it did not start.
        started = isinstance(error, ProcessError) and error.finished is not None
        return started and not (self._is_repeatable and self._input.again())

    async def _attempt(self) -> int:
        """Run the command once, and return its exit code. Raises `ProcessError` if it fails."""
        self._input.begin()
        running = run(
            self._command,
            # The caller of a command line expects the whole environment, secrets included.
            env=dict(os.environ),
            stdin=self._input.mode,
            timeout=self._timeout,
            idle=self._idle,
            grace=self._grace,
            keep=_KEPT_BYTES,
            output_cap=None,
        )
        record: dict[str, Any] = {"attempt": len(self._attempts) + 1}
        self._attempts.append(record)
        try:
            async with running as process:
                self._process = process
                finished = await self._pass_through(process)
        except ProcessError as error:
            _describe(record, error.finished, error.fault)
            raise
        finally:
            self._process = None
        _describe(record, finished, None)
        if finished is not None:
            return 0
        if isinstance(self._out.broken_by, BrokenPipeError):
            return _BY_SIGNAL + signal.SIGPIPE
        fail(f"cannot write the output of the command: {self._out.broken_by}; the command was ended")
        return Exit.FAILED

    async def _pass_through(self, process: Process) -> Finished | None:
        """Pass input and output until the command ends; return None if nobody reads our output any more."""
        feeding = asyncio.create_task(self._input.feed(process))
        try:
            async for chunk in process:
                await (self._out if chunk.stream == "stdout" else self._err).write(chunk.data)
                if self._out.broken_by is not None:
                    # Without us in between, it would end by SIGPIPE now.
                    return None
            return await process.finished()
        finally:
            feeding.cancel()

    # --- signals ---

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on to the command while the block runs. It has a session of its own, so the terminal's do not reach it."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[signal.Signals], None]] = {
            **dict.fromkeys(_ENDING, self._end),
            **dict.fromkeys(_PASSING, self._pass_on),
            signal.SIGTSTP: lambda _: self._suspend(),
        }
        if threading.current_thread() is not threading.main_thread():
            handlers = {}
        # A signal that is ignored already, as SIGHUP under nohup, stays ignored: the command inherits that.
        taken = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, handlers[number], number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _end(self, number: signal.Signals) -> None:
        """Let the command end by the signal that we got. A second signal kills it at once."""
        process, grace = self._process, self._grace
        if self._signal is not None:
            grace = 0.0
        elif process is not None:
            process.send_signal(number)
        self._signal = number
        if process is None:
            # Between two attempts there is nothing to end.
            self._cancel()
        elif self._ending is None or grace == 0.0:
            self._ending = asyncio.get_running_loop().create_task(self._ended(process, grace))

    async def _ended(self, process: Process, grace: float) -> None:
        if not await process.wait(grace):
            await process.stop(min(grace, 1.0))
        await asyncio.sleep(_LAST_WORDS_S if grace else 0.0)
        self._cancel()

    def _cancel(self) -> None:
        assert self._main is not None
        self._main.cancel()

    def _pass_on(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _suspend(self) -> None:
        # SIGTSTP does not stop a program without a terminal, and the command has none. SIGSTOP does.
        self._pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        # Here we have been continued.
        self._pass_on(signal.SIGCONT)
        if self._process is not None:
            self._process.alive()

    # --- what people see ---

    def _narrate(self, line: LiveLine) -> None:
        # The end of a failed run is reported by `_report`, with the exit code.
        if not self._flags.quiet and line.state not in (LiveWord.FAILED, LiveWord.CANCELLED):
            narrate(f"holdfast: {line.shown(line.at)}" if sys.stderr.isatty() else line.logged())

    def _delayed(self, event: Event) -> None:
        if isinstance(event, Retry) and self._attempts:
            self._attempts[-1]["delay_s"] = round(event.delay, 3)

    def _report(self, error: ProcessError) -> None:
        many = "" if len(self._attempts) == 1 else f" after {len(self._attempts)} attempts"
        fail(f"{_how(error)}{many} · {error.fault.code}", f"holdfast explain {error.fault.code}")

    def _status_of(self, error: ProcessError) -> int:
        if error.finished is None:
            is_missing = isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError))
            return _NOT_FOUND if is_missing else _NOT_STARTED
        if isinstance(error, ProcessTimeoutError):
            return _TIMED_OUT
        if self._signal is not None and error.fault.code == "TOOL_CANCELLED":
            # It did not end by the signal that we got, so we have ended it.
            return _BY_SIGNAL + self._signal
        code = error.finished.exit_code
        return _BY_SIGNAL - code if code < 0 else code

    def _document(self, error: ProcessError | None, status: int, took: float) -> dict[str, Any]:
        return {
            "schema": "holdfast.run/1",
            "command": list(self._command),
            "target": str(self._target),
            "exit": status,
            "code": None if error is None else error.fault.code,
            "message": "" if error is None else _how(error),
            "attempts": self._attempts,
            "took_s": round(took, 3),
        }


def _describe(record: dict[str, Any], finished: Finished | None, fault: Fault | None) -> None:
    record["exit_code"] = None if finished is None else finished.exit_code
    record["signal"] = "" if finished is None else finished.signal
    record["took_s"] = 0.0 if finished is None else round(finished.took, 3)
    record["code"] = None if fault is None else fault.code


def _how(error: ProcessError) -> str:
    """Return how the command failed, in one line."""
    finished = error.finished
    if finished is None or isinstance(error, ProcessTimeoutError):
        return one_line(error.fault.message)
    how = f"was killed by {finished.signal}" if finished.signal else f"exited with {finished.exit_code}"
    return one_line(f"{error.fault.context['command']} {how}")


class _Outlet:
    """Writes to one of our streams, in a thread of its own: a reader that does not read must not stop our timers."""

    def __init__(self, stream: Any) -> None:
        self.broken_by: OSError | None = None
        """Why nothing can be written any more: nobody reads, or the disk is full."""
        self._write = _writer(stream)
        self._queue: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def write(self, data: bytes) -> None:
        """Write all of it. Returns when it is written, or nobody reads any more."""
        if self.broken_by is not None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="holdfast output", daemon=True)
            self._thread.start()
        written = asyncio.get_running_loop().create_future()
        self._queue.put((data, written))
        await written

    def close(self) -> None:
        """End the thread. If it is stuck with a reader that does not read, it ends with this process."""
        self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            data, written = item
            try:
                self._write(data)
            except OSError as error:
                self.broken_by = error
            with suppress(RuntimeError):  # the event loop is closed
                written.get_loop().call_soon_threadsafe(_settle, written)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _writer(stream: Any) -> Callable[[bytes], None]:
    """Return a function that writes bytes to a standard stream at once."""
    stream.flush()
    descriptor = _descriptor_of(stream)

    def write(data: bytes) -> None:
        if descriptor is None:
            stream.buffer.write(data)
            stream.buffer.flush()
            return
        # Not through the buffered stream: a thread that is stuck in it would stop the interpreter from ending.
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return write


def _descriptor_of(stream: Any) -> int | None:
    """Return the descriptor of a standard stream; None if a test has replaced it."""
    try:
        return int(stream.fileno())
    except (OSError, ValueError):
        return None


class _Input:
    """The input of the command: ours, as it is. A file is read again from where it was; a terminal goes on."""

    mode: Any = "inherit"

    @staticmethod
    def of(stream: Any, *, replay: bool) -> _Input:
        """Return the input for the attempts. `replay`: there may be a second one, which needs the whole input too."""
        descriptor = _descriptor_of(stream)
        if descriptor is None:
            return _NoInput()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return _FileInput(descriptor)
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return _ReplayedInput(descriptor) if replay else _Input()
        return _Input()

    def begin(self) -> None:
        """Prepare it for an attempt."""

    async def feed(self, process: Process) -> None:
        """Pass the input to the command, if it does not read ours itself."""

    def again(self) -> bool:
        """Whether another attempt would get the same input."""
        return True


class _NoInput(_Input):
    mode = "closed"


class _FileInput(_Input):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._start = os.lseek(descriptor, 0, os.SEEK_CUR)

    def begin(self) -> None:
        os.lseek(self._descriptor, self._start, os.SEEK_SET)


class _ReplayedInput(_Input):
    """A piped input that is kept, because a pipe can be read only once."""

    mode = "pipe"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._dropped = 0
        self._is_over = False

    def again(self) -> bool:
        return not self._dropped

    async def feed(self, process: Process) -> None:
        position = 0
        while True:
            data = bytes(self._kept[position - self._dropped :][:_READ_BYTES])
            if data:
                position += len(data)
                await process.write(data)
            elif self._is_over:
                process.close_input()
                return
            else:
                await self._read()

    async def _read(self) -> None:
        """Read more. It is read only when the command has taken all before, so that little is read in vain."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _settle, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if len(self._kept) + len(data) > _REPLAY_BYTES:
            self._dropped += len(self._kept)
            self._kept.clear()
        self._kept += data
        self._is_over = not data
