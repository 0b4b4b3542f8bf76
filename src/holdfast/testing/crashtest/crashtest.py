"""`CrashTest`: runs a program, kills it at each of its points, runs it again until it ends, and compares what happened.

observe twice, without a kill ─▶ points ─▶ for each: fresh state, run, SIGKILL at the point, run again until it ends ─▶ Report
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.testing.crashtest.forked import CannotForkError, Zygote
from holdfast.testing.crashtest.gateway import Gateway, GatewayTarget
from holdfast.testing.crashtest.points import Kill, kills_of
from holdfast.testing.crashtest.report import Report, Run, Trial, judge
from holdfast.testing.crashtest.state import absolute_command, check_size, copy_state
from holdfast.testing.crashtest.watch import Hook, PointWatch
from holdfast.testing.provider import FaultProvider, read_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.testing.crashtest.forked import Forked
    from holdfast.testing.crashtest.report import Row
    from holdfast.testing.provider.script import Script

_INSIDE = Path(__file__).with_name("inside")
_MODELS = {
    "ANTHROPIC_BASE_URL": "https://api.anthropic.com",
    "OPENAI_BASE_URL": "https://api.openai.com/v1",
    "GOOGLE_GEMINI_BASE_URL": "https://generativelanguage.googleapis.com",
}
# Traces of killed runs help nobody, and would be sent encrypted.
_NO_TRACES = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
_KEPT_BYTES = 20_000
_LEAST_TIMEOUT_S = 30.0
_TIMES_OBSERVED = 5


class CrashTest:
    """Kills a program at every point that can be seen, and reports what its next runs double and lose.

        report = CrashTest(["python", "agent.py"], effects=["http://127.0.0.1:9000"]).run()
        assert not report.damage, report.text()

    The program is a command that can be run again: it goes on where it was cut, or starts over. It need not use Holdfast. Each kill
    starts from a copy of its folder, and the program runs in that copy.

    folder: the program's working directory, with its state; by default the current one.
    effects: addresses (`https://pay.example/v1`) whose requests are effects, unless they only read. `NAME=URL` also gives the program a
        local address for it in the variable `NAME`. Without any, every request that changes something and is not to a model is an effect.
    targets: other services that the program reads from an environment variable: `{"SEARCH_URL": "https://…"}`.
    fake_model: answer model requests with the fault provider, which needs no keys: True, or its script.
    fake_effects: send no effect at all. Each gets the answer 200 with an empty JSON object.
    live: send everything in every run, which is for models and services that are there to be tested. By default only the first run sends
        effects and model requests. Later runs get its answers, and the test counts what they would have sent.
    expect: text that the program prints when it has done its work. If no run of a trial prints it, the verdict is `wrong`.
    check: called with the folder after each trial; returns what is wrong with it, or nothing.
    kills: at most so many kills; by default all that leave a different state. `every` makes the others, too.
    restarts: how often it is run again after a kill before the verdict is `fails`.
    fork: fork the runs after the first from a process that has imported the same modules, where that is safe: on Linux, if the imports
        start no thread and write no file, and if two runs reach the same points. Otherwise, and with False, each run starts an
        interpreter. `Report.started` says which it was, and why.
    timeout: seconds for one run; by default five times what the run without a kill took, and at least 30.
    environment: variables for the program.

    Raises `InvalidError` for options that cannot be, if the program fails without a kill, and if it sends encrypted requests that every
    run would send in earnest (unless `live`). It needs Linux or macOS.
    """

    @options.suggests
    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str | os.PathLike[str] = ".",
        effects: Sequence[str] = (),
        targets: Mapping[str, str] | None = None,
        fake_model: bool | str | Script = False,
        fake_effects: bool = False,
        live: bool = False,
        expect: str = "",
        check: Callable[[Path], str | None] | None = None,
        kills: int | None = None,
        every: bool = False,
        restarts: int = 3,
        timeout: float | None = None,
        fork: bool = True,
        environment: Mapping[str, str] | None = None,
        on_row: Callable[[int, int, Row], None] | None = None,
    ) -> None:
        if not command:
            raise InvalidError.saying("crashtest.command", "a program and its arguments", "nothing")
        options.count("crashtest.restarts", restarts)
        if kills is not None:
            options.count("crashtest.kills", kills)
        if timeout is not None:
            options.seconds("crashtest.timeout", timeout)
        self._folder = Path(folder).resolve()
        self._command = tuple(command)
        self._effects, named = _effects_of(effects)
        self._targets = {**named, **(targets or {})}
        for variable, url in self._targets.items():
            _check_url(variable, url)
        self._fake_model = fake_model
        self._fake_effects = fake_effects
        self._live = live
        self._expect = expect
        self._check = check
        self._kills = kills
        self._every = every
        self._restarts = restarts
        self._timeout = timeout
        self._environment = dict(environment or {})
        self._on_row = on_row
        self._fork = fork
        self._zygote: Zygote | None = None
        self._ended_by = ""
        self._connected = False

    def run(self) -> Report:
        """Make the test. It blocks until all kills are made; in an event loop use `arun`.

        If SIGTERM or Ctrl-C ends it, the report has the kills that were made until then, and `Report.unfinished` says how many were not.
        """
        return asyncio.run(self._run_until_signal())

    async def arun(self) -> Report:
        """Make the test, inside an event loop."""
        _check_platform()
        check_size(self._folder)
        self._check_program()
        async with AsyncExitStack() as stack:
            home = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="crashtest-", ignore_cleanup_errors=True))
            )
            self._home = home
            # A copy, because a program that runs meanwhile may change the folder.
            copy_state(self._folder, home / "fresh")
            self._hook = await stack.enter_async_context(Hook(str(home / "points")))
            self._gateway = await stack.enter_async_context(
                Gateway(await self._services(stack), self._effects, live=self._live, fake_effects=self._fake_effects)
            )
            return await self._test(stack)

    async def _run_until_signal(self) -> Report:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(name: str) -> None:
            self._ended_by = name
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            # In another thread than the main one nobody gets signals.
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, end, number.name)
        try:
            return await self.arun()
        except asyncio.CancelledError:
            if not self._ended_by:
                raise
            return Report(
                command=self._command,
                rows=(),
                points=0,
                effects=0,
                model_requests=0,
                seconds=0.0,
                notes=(f"{self._ended_by} ended the test before the first kill",),
                unfinished=self._kills or 1,
            )

    async def _test(self, stack: AsyncExitStack) -> Report:
        observed = await self._observe()
        self._check_hidden()
        self._gateway.plays = True
        again, started = await self._observe_again(observed, stack)
        same_bodies = _bodies(observed) == _bodies(again)
        notes = self._notes(observed, again, same_bodies=same_bodies)
        kills = kills_of(observed.marks, every=self._every, most=self._kills)
        rows: list[Row] = []
        try:
            for kill in kills:
                row = judge(observed, await self._trial(kill, observed), same_bodies=same_bodies)
                rows.append(row)
                if self._on_row is not None:
                    self._on_row(len(rows), len(kills), row)
        except asyncio.CancelledError:
            if not self._ended_by:
                raise
            notes.append(f"{self._ended_by} ended the test after {len(rows)} of {len(kills)} kills")
        return Report(
            command=self._command,
            rows=tuple(rows),
            points=sum(mark.side == "before" for mark in observed.marks),
            effects=sum(sent.kind == "effect" for sent in observed.sent),
            model_requests=sum(sent.kind == "model" for sent in observed.sent),
            seconds=round(observed.runs[0].seconds, 3),
            notes=tuple(notes),
            started=started,
            unfinished=len(kills) - len(rows),
        )

    async def _observe_again(self, observed: Trial, stack: AsyncExitStack) -> tuple[Trial, str]:
        """Run the program once more, without a kill, as all later runs are made; return how these are started."""
        try:
            return await self._forked_trial(observed, stack), "forked"
        except CannotForkError as why:
            self._zygote = None
            return await self._trial(None), f"interpreter: {why}"

    async def _forked_trial(self, observed: Trial, stack: AsyncExitStack) -> Trial:
        """Run the program once by a fork. Raises `CannotForkError` if that is not safe, or not the same."""
        if not self._fork:
            raise CannotForkError("that was asked for")
        folder = self._home / "zygote"
        folder.mkdir()
        modules = _words_of(Path(f"{self._hook.path}.modules"))
        command = absolute_command(self._command, self._folder)
        zygote = await Zygote.open(command, modules, folder, self._variables(self._home / "trial"))
        stack.push_async_callback(zygote.close)
        self._zygote = zygote
        forked = await self._trial(None)
        if Counter(forked.marks) != Counter(observed.marks) or forked.runs[0].exit_code != 0 or forked.wrong:
            raise CannotForkError("a forked run reached other points")
        return forked

    async def _observe(self) -> Trial:
        """Run the program without a kill. It must work: nothing can be compared with a failure."""
        observed = await self._trial(None)
        run = observed.runs[0]
        wrong = ""
        if run.how == "timed out":
            wrong = f"it did not end within {run.seconds:.0f} s"
        elif run.exit_code != 0:
            wrong = f"it exited with {run.exit_code}: {run.last_line or 'no message'}"
        elif observed.wrong:
            wrong = observed.wrong
        if wrong:
            raise InvalidError.saying(
                "crashtest.command", "a program that works when it is not killed", wrong + _hint(observed)
            )
        if self._timeout is None:
            self._timeout = max(_LEAST_TIMEOUT_S, _TIMES_OBSERVED * run.seconds)
        return observed

    async def _trial(self, kill: Kill | None, observed: Trial | None = None) -> Trial:
        """Run the program from a fresh state, with at most one kill, until it ends."""
        # All trials have the same path, because a forked program has read its environment before.
        place = self._home / "trial"
        folder = place / "work"
        copy_state(self._home / "fresh", folder)
        watch = PointWatch(None if kill is None else kill.mark)
        self._gateway.begin(watch)
        try:
            runs = [await self._run(place, watch)]
            while observed is not None and not _is_over(runs, observed, self._restarts):
                later = PointWatch()
                self._gateway.watch(later)
                runs.append(await self._run(place, later))
            wrong = self._wrong(runs, folder)
        finally:
            # All copies together could fill the disk.
            shutil.rmtree(place, ignore_errors=True)
        sent = tuple(self._gateway.sent)
        self._outside = watch.outside
        # A forked run has said so where it was forked from.
        self._connected = self._connected or watch.connected
        return Trial(runs=tuple(runs), sent=sent, marks=tuple(watch.marks), kill=kill, wrong=wrong)

    async def _run(self, place: Path, watch: PointWatch) -> Run:
        """Run the program once. The watch may kill it."""
        self._hook.watch = watch
        begun = time.monotonic()
        process: asyncio.subprocess.Process | Forked | None = None

        def kill() -> None:
            if process is not None:
                _kill_group(process.pid)

        watch.kill = kill
        process = await self._started(place)
        if watch.killed:
            # It has reached the point before its number was known here, and stands still there.
            kill()
        timed_out = False
        try:
            await asyncio.wait_for(process.wait(), self._timeout or _LEAST_TIMEOUT_S * _TIMES_OBSERVED)
        except TimeoutError:
            timed_out = True
        finally:
            _kill_group(process.pid)
            await process.wait()
        await self._gateway.settle()
        return Run(
            how="killed" if watch.killed else "timed out" if timed_out else "ended",
            exit_code=None if watch.killed or timed_out else process.returncode,
            seconds=time.monotonic() - begun,
            output=_end_of(place / "stdout"),
            errors=_end_of(place / "stderr"),
        )

    async def _started(self, place: Path) -> asyncio.subprocess.Process | Forked:
        """Start the program, whose process and everything it starts are one group, which is killed together."""
        if self._zygote is not None:
            return await self._zygote.start(place / "work", output=place / "stdout", errors=place / "stderr")
        with (place / "stdout").open("wb") as output, (place / "stderr").open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                *absolute_command(self._command, self._folder),
                cwd=place / "work",
                env=self._variables(place),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def _variables(self, place: Path) -> dict[str, str]:
        variables = {**os.environ, **self._environment}
        # A store elsewhere would keep the work of one trial for the next.
        variables.pop("HOLDFAST_STORE", None)
        paths = [str(_INSIDE), *filter(None, [variables.get("PYTHONPATH")])]
        return {
            **variables,
            **self._keys(variables),
            **self._gateway.environment,
            **_NO_TRACES,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(place / "work" / ".state"),
            "_HOLDFAST_CRASHTEST": self._hook.path,
            "_HOLDFAST_CRASHTEST_STATE": str(place / "work"),
        }

    def _keys(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return keys for the fake model. The SDKs start only with one."""
        if self._fake_model is False:
            return {}
        names = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
        return {name: "test" for name in names if not variables.get(name)}

    async def _services(self, stack: AsyncExitStack) -> list[GatewayTarget]:
        """Return the services that the program reaches through the gateway."""
        variables = {**os.environ, **self._environment}
        if self._fake_model is not False:
            script = 'replies = "tools"' if self._fake_model is True else self._fake_model
            provider = await stack.enter_async_context(
                FaultProvider(read_script(script) if isinstance(script, str) else script)
            )
            urls = {name: url for name, url in provider.environment.items() if name.endswith("_URL")}
        else:
            urls = {name: variables.get(name) or url for name, url in _MODELS.items()}
        models = [GatewayTarget(name, url, is_model=True) for name, url in urls.items() if name not in self._targets]
        return [*models, *(GatewayTarget(name, url) for name, url in self._targets.items())]

    def _wrong(self, runs: Sequence[Run], folder: Path) -> str:
        """Return what the caller's own checks say about the end of a trial."""
        if runs[-1].exit_code != 0:
            return ""
        if self._expect and not any(self._expect in run.output for run in runs):
            return f"no run printed {self._expect!r}"
        return "" if self._check is None else self._check(folder) or ""

    def _notes(self, observed: Trial, again: Trial, *, same_bodies: bool) -> list[str]:
        notes = []
        if not self._connected:
            notes.append("only HTTP requests were seen: writes are seen in Python programs that read PYTHONPATH")
        if self._gateway.hidden:
            hosts = ", ".join(sorted(self._gateway.hidden))
            notes.append(
                f"requests to {hosts} are encrypted and were not seen: name the variable of their address as a target"
            )
        if self._outside:
            notes.append(
                f"state outside of the folder is not reset between kills: {', '.join(sorted(self._outside)[:5])}"
            )
        if not same_bodies:
            notes.append("two runs sent different bodies, so effects were only counted")
        if Counter(observed.marks) != Counter(again.marks):
            notes.append("two runs reached different points, so some kills may not be reached")
        return notes

    def _check_hidden(self) -> None:
        """Raise if later runs would send requests in earnest that cannot be played from the record."""
        if self._gateway.hidden and not self._live:
            hosts = ", ".join(sorted(self._gateway.hidden))
            raise InvalidError.saying(
                "crashtest",
                "requests that can be seen: name the variable with the service's address as a target, or allow every run to send them"
                " with `live`",
                f"encrypted ones to {hosts}",
            )

    def _check_program(self) -> None:
        program = absolute_command(self._command, self._folder)[0]
        path = self._environment.get("PATH", os.environ.get("PATH"))
        if shutil.which(program, path=path) is None:
            raise InvalidError.saying(
                "crashtest.command", "a program that can be run", f"{program!r}, which is not found"
            )


def _is_over(runs: Sequence[Run], observed: Trial, restarts: int) -> bool:
    """Whether another run would tell nothing new."""
    last = runs[-1]
    if last.how == "killed":
        return False
    if last.how == "timed out" or last.exit_code == observed.runs[-1].exit_code or last.asks:
        return True
    # Twice the same error: it will not change by itself.
    repeats = len(runs) > 2 and runs[-2].last_line == last.last_line
    return repeats or len(runs) > restarts


def _bodies(trial: Trial) -> Counter[tuple[str, str, str]]:
    return Counter((sent.method, sent.path, sent.body) for sent in trial.sent if sent.kind == "effect")


def _words_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended by itself
        os.killpg(pid, signal.SIGKILL)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _KEPT_BYTES))
        return file.read().decode("utf-8", "replace")


def _hint(observed: Trial) -> str:
    """Return what may help a program that fails without a kill."""
    silent = [sent.target for sent in observed.sent if sent.status is None]
    if silent:
        return f" (no answer from {silent[-1]})"
    denied = any(sent.kind == "model" and sent.status in (401, 403) for sent in observed.sent)
    if denied or "api_key" in observed.runs[0].errors.lower():
        return " (without a key for the model, use a fake model)"
    return ""


def _check_platform() -> None:
    if sys.platform == "win32":
        raise InvalidError.saying("crashtest", "Linux or macOS, where a group of processes can be killed", sys.platform)


def _effects_of(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the addresses of effects, and those that have a variable."""
    addresses: list[str] = []
    named: dict[str, str] = {}
    for each in given:
        variable, equals, url = each.partition("=")
        if equals and "://" not in variable:
            named[variable] = url
        else:
            url = each
        _check_url("effects", url)
        addresses.append(url)
    return addresses, named


def _check_url(name: str, url: Any) -> None:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidError.at(f"crashtest.{name}", "an address with http:// or https://", url)
