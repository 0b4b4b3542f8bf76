"""Validators: checks of an agent's tool calls, results and answer, which pass, correct or reject what they look at.

    call ─▶ PreToolUse ─▶ approval ─▶ the tool ─▶ PostToolUse ─▶ result          the agent's answer ─▶ Stop

Invariant: each validator that applies emits `HookEvent`s: it waits, it runs, and how it ended. A validator that raises rejects nothing.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.events import Correction, HookEvent, HookType
from holdfast.faults import InvalidError
from holdfast.providers.messages import ToolCall
from holdfast.runtime.secrets import process_redactor
from holdfast.tools.process import run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.events import HookState
    from holdfast.runtime.runtime import Runtime

__all__ = ["Checked", "Validator", "Validators"]

Verdict: TypeAlias = "str | bool | Correction | None"
_PASSED, _ERROR, _CORRECTABLE = 0, 1, 2
"""The exit codes of a validator: it passes, it could not check, what it checked is wrong."""
_SECONDS = 10.0
_PATHS = ("path", "file_path", "filename")
"""The arguments of a tool that name the file that it works on."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a validator looks at: a call, before or after it was run, or the agent's answer."""

    on: HookType
    call: ToolCall | None = None
    """The call; None at the end of a run."""
    content: str = ""
    """The result of the call, or the agent's answer."""

    @property
    def path(self) -> str:
        """The file that the call is about; empty if its arguments name none."""
        found = [] if self.call is None else [self.call.arguments.get(name) for name in _PATHS]
        return next((path for path in found if isinstance(path, str)), "")


class Validator(msgspec.Struct, frozen=True, kw_only=True):
    """A check of an agent's work, for `Hooks(validators=…)`. Wrong options raise `InvalidError`.

        from holdfast.agents import Agent, Hooks, Validator
        from holdfast.events import Correction

        def in_project(checked):
            path = checked.path
            return None if path.startswith("src/") else f"{path} is outside of src/"

        agent = Agent("writer", model, tools, hooks=Hooks(validators=[Validator(name="paths", check=in_project, on="PreToolUse")]))

    `Validator.command` makes one of a program.
    """

    name: str
    """What events and screens call it."""
    check: Callable[[Checked], Verdict | Awaitable[Verdict]]
    """Returns None or True if all is well, a text that says what is wrong, or a `Correction`: its `after` is used instead. It may be
    async. One that raises could not check: that is reported, and the work goes on."""
    on: HookType = "PostToolUse"
    """`PreToolUse` looks at a call before anybody is asked about it, `PostToolUse` at its result, `Stop` at the agent's answer."""
    tools: frozenset[str] | None = None
    """The tools whose calls it looks at. None: all."""

    def __post_init__(self) -> None:
        options.name("validator.name", self.name)
        options.function("validator.check", self.check, "check=f")
        options.one_of("validator.on", self.on, get_args(HookType))
        options.names("validator.tools", self.tools, optional=True)

    @classmethod
    def command(
        cls,
        name: str,
        command: Sequence[str],
        *,
        on: HookType = "PostToolUse",
        tools: frozenset[str] | None = None,
        timeout: float = _SECONDS,
    ) -> Validator:
        """Return a validator that runs a program, which reads what it checks as JSON: `on`, `call`, `content`.

        It exits with 0 if all is well, and with 2 if something is wrong: what it prints is then the correction (JSON arguments before a
        call), and with nothing printed its standard error says what is wrong. Any other exit code means that it could not check.

            Validator.command("ruff", ["python", "check_with_ruff.py"], tools=frozenset({"write_file"}))
        """

        async def check(checked: Checked) -> Verdict:
            done = await run(command, input=msgspec.json.encode(checked), timeout=timeout, check=False)
            if done.exit_code == _PASSED:
                return None
            if done.exit_code != _CORRECTABLE:
                message = f"{name} exited with {done.exit_code}: {done.stderr.strip()}"
                raise RuntimeError(message)
            if not done.stdout.strip():
                return done.stderr.strip() or f"{name} rejects it"
            if checked.on == "PreToolUse":
                assert checked.call is not None
                return Correction(before=checked.call.arguments, after=msgspec.json.decode(done.stdout))
            return Correction(before=checked.content, after=done.stdout)

        return cls(name=name, check=check, on=on, tools=tools)


class Validators:
    """The validators of one run: what they look at comes back as it is, corrected, or with the reason why it is wrong."""

    def __init__(self, validators: Iterable[Validator], runtime: Runtime) -> None:
        self._validators = tuple(validators)
        self._runtime = runtime

    async def before(self, call: ToolCall) -> tuple[ToolCall, str]:
        """Check a call that is to be run; return it, corrected, and why it is wrong: empty if it is not."""
        found, reason = await self._all(Checked(on="PreToolUse", call=call))
        assert found.call is not None
        return found.call, reason

    async def after(self, call: ToolCall, content: str) -> tuple[str, str]:
        """Check the result of a call; return it, corrected, and why it is wrong."""
        found, reason = await self._all(Checked(on="PostToolUse", call=call, content=content))
        return found.content, reason

    async def at_stop(self, answer: str) -> tuple[str, str]:
        """Check the agent's answer; return it, corrected, and why it is wrong."""
        found, reason = await self._all(Checked(on="Stop", content=answer))
        return found.content, reason

    async def _all(self, checked: Checked) -> tuple[Checked, str]:
        tool = "" if checked.call is None else checked.call.name
        waiting = [
            one for one in self._validators if one.on == checked.on and (not one.tools or not tool or tool in one.tools)
        ]
        for one in waiting:
            self._emit(one, checked, "pending")
        reason = ""
        for one in waiting:
            if reason:
                # What was rejected already is not looked at again.
                self._emit(one, checked, "skipped")
            else:
                checked, reason = await self._one(one, checked)
        return checked, reason

    async def _one(self, validator: Validator, checked: Checked) -> tuple[Checked, str]:
        self._emit(validator, checked, "triggered")
        try:
            verdict = validator.check(copy.deepcopy(checked))
            if inspect.isawaitable(verdict):
                verdict = await verdict
            corrected = _corrected(checked, verdict) if isinstance(verdict, Correction) else checked
        except Exception as error:  # noqa: BLE001 - a check that cannot be made rejects nothing
            message = f"{type(error).__name__}: {error}"
            self._emit(validator, checked, "error", exit_code=_ERROR, message=message)
            self._report(validator, f"the validator {validator.name}", error)
            return checked, ""
        if isinstance(verdict, Correction):
            self._emit(validator, checked, "corrected", exit_code=_CORRECTABLE, correction=verdict)
        elif verdict is None or verdict is True:
            self._emit(validator, checked, "passed", exit_code=_PASSED)
        else:
            reason = verdict if isinstance(verdict, str) and verdict.strip() else self._slip(validator, verdict)
            self._emit(validator, checked, "failed", exit_code=_CORRECTABLE, message=reason)
            return checked, reason
        return corrected, ""

    def _slip(self, validator: Validator, verdict: Any) -> str:
        """Return why what got no verdict does not pass. A check that returns False means to reject."""
        expected = "a function that returns None or True, a text that says what is wrong, or a Correction"
        wrong = InvalidError.at(f"validator {validator.name}", expected, verdict)
        self._report(validator, f"the validator {validator.name} (what it checked is rejected)", wrong)
        return f"rejected by {validator.name}"

    def _report(self, validator: Validator, what: str, error: Exception) -> None:
        self._runtime.bus.hook_raised(validator, what, error, at=self._runtime.clock.wall())

    def _emit(
        self,
        validator: Validator,
        checked: Checked,
        what: HookState,
        *,
        exit_code: int | None = None,
        message: str = "",
        correction: Correction | None = None,
    ) -> None:
        bus = self._runtime.bus
        if not bus.wants(HookEvent):
            return
        redactor = process_redactor()
        if correction is not None:
            correction = Correction(before=redactor.value(correction.before), after=redactor.value(correction.after))
        bus.emit(
            HookEvent(
                at=self._runtime.clock.wall(),
                what=what,
                hook=checked.on,
                validator=validator.name,
                call="" if checked.call is None else checked.call.id,
                path=checked.path,
                exit_code=exit_code,
                message=redactor.text(message),
                correction=correction,
            )
        )


def _corrected(checked: Checked, correction: Correction) -> Checked:
    """Return what was checked with its correction. Raises `InvalidError` for one that is none of a call."""
    if checked.on != "PreToolUse":
        return msgspec.structs.replace(checked, content=str(correction.after))
    if not isinstance(correction.after, dict) or checked.call is None:
        raise InvalidError.at("validator.correction", "the arguments of the call", correction.after)
    return msgspec.structs.replace(checked, call=msgspec.structs.replace(checked.call, arguments=correction.after))
