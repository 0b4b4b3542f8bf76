"""One run of a command-line agent: the program is started, read, and resumed where it was cut.

In a session a run has two steps. `begin` must not happen twice: it starts the program and ends as soon as the program has printed its own
id, or its whole answer if it has no id. `finish` may be repeated: it reads the rest of the running program, or resumes the conversation
of that id if the program is gone. So the id is stored before the program does its work, and a crash after that loses nothing.

Invariant: when a run ends, however it ends, no process of the program is alive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from holdfast.agents.approver import Approver, Terms
from holdfast.agents.command_faults import command_error, command_fault, is_lost, lost_conversation
from holdfast.agents.command_lines import FORMS, AcpLines, Guessing
from holdfast.agents.command_talk import Permissions, Talk
from holdfast.agents.names import take_names
from holdfast.agents.reply import AgentReply
from holdfast.agents.usage_limit import Parking
from holdfast.faults import Fault
from holdfast.policies.models.usage import Usage
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.budgets.charges import take_back_attempt
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.recover import recover
from holdfast.runtime.tool import tool
from holdfast.tools.process import Process
from holdfast.tools.process_error import ProcessError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.agents.command import CommandAgent
    from holdfast.agents.command_lines import Form, FormName, LineReader, Report
    from holdfast.agents.feed import Feed
    from holdfast.agents.parts import AgentPart
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.sessions.session import Session
    from holdfast.tools.process_error import Finished

__all__ = ["AGAIN", "Begun", "CommandRun"]

T = TypeVar("T", Usage, float)

_EXIT_S = 5.0
"""How long a program may live after its last line. Some hang there, and the answer is complete."""
AGAIN = (
    "Your last run of this task was interrupted, perhaps before it had begun. Go on from where you stopped. Look first at what is "
    "already done, and do not do it a second time. The task:\n\n{prompt}"
)
"""The prompt of a run that goes on with a conversation that was cut."""


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program has begun: the id of its conversation, or its whole answer if it has no id."""

    session: str = ""
    form: str = ""
    reply: AgentReply | None = None


class _Live:
    """A program that was started, and what is known about it."""

    def __init__(self, process: Process, reader: LineReader, form: Form | None, talk: Talk | None) -> None:
        self.process = process
        self.talk = talk
        """What we say to the program; None: it has its prompt, and that is all."""
        self.lines: AsyncIterator[str] = process.lines()
        self.reader = reader
        self._form = form
        self.finished: Finished | None = None
        self.stopped: Fault | None = None

    @property
    def report(self) -> Report:
        return self.reader.report

    @property
    def form(self) -> Form:
        guessed = self.reader.form if isinstance(self.reader, Guessing) else None
        return self._form or guessed or FORMS["plain"]

    def ended(self, error: ProcessError | None, finished: Finished | None) -> None:
        self.finished = finished
        if error is not None and (finished is None or "limit" in error.fault.context):
            self.stopped = error.fault
        elif finished is not None and finished.exit_code == 0:
            self.reader.end()

    async def stop(self) -> None:
        """End the program. One that we speak with is asked to end its turn first."""
        await (self.process.stop() if self.talk is None else self.talk.stop())


class CommandRun:
    """One run of an agent on one prompt."""

    def __init__(self, agent: CommandAgent, prompt: str, session: Session | None, feed: Feed | None) -> None:
        self._agent = agent
        self._prompt = prompt
        self._session = session
        self._feed = feed
        """Takes the parts; None: nobody reads them."""
        self._began = asyncio.get_running_loop().time()
        self._live: _Live | None = None
        """The program that `begin` has started and `finish` reads."""
        self._begun: Begun | None = None
        """What `begin` returned, without a session."""
        self._conversation = ""
        """The id of the conversation that is resumed."""
        self._operation: Operation | None = None
        """The recovery around the present attempt."""
        self._has_seen_all = False
        """Whether this process has read the run from its beginning."""
        self._worked = False
        """Whether a tool call was seen."""
        self._runs = 0
        """How often the program was started."""
        self._usage: Usage | None = None
        self._usd: float | None = None
        self._spent = 0.0
        """What the present conversation cost up to now."""

    async def reply(self) -> AgentReply:
        """Make the run, with retries. In a session a run that failed goes on when it is called again."""
        if self._session is None:
            return await self._reply("")
        take_names(self._session, self._agent)
        return await self._session.numbered(f"agent {self._agent.name}", self._prompt, self._reply)

    async def _reply(self, key: str) -> AgentReply:
        self._key = key
        agent = self._agent
        recovery = recover(_target_of(agent), agent.policy, runtime=agent.runtime)
        show = None if self._feed is None else self._feed.put
        parking = Parking(agent.name, self._session, agent.on_limit, agent.runtime, show)
        while True:
            await parking.check()
            try:
                return await recovery.call(self._attempt)
            except Exception as error:
                if not await parking.goes_on(error):
                    raise
                # The limit for everything is one of work, not of waiting.
                self._began = asyncio.get_running_loop().time()
            finally:
                await self._stop()

    async def _attempt(self) -> AgentReply:
        around = AMBIENT.get()
        self._operation = around if isinstance(around, Operation) else None
        if self._operation is not None:
            # Each run of the program is charged by itself: an attempt may make none, if the session has its reply.
            take_back_attempt(self._operation)
        name, prompt = self._agent.name, self._prompt
        begun = await self._begin_once(name, prompt)
        if begun.reply is not None:
            reply = begun.reply
        elif self._session is not None:
            step = self._session.keyed(f"{self._key}/finish")
            reply = await step.step(self.finish, name, begun.session, begun.form)
        else:
            reply = await self.finish(name, begun.session, begun.form)
        if self._operation is not None and self._operation.charges is not None:
            self._operation.charges.remember(reply)
        return reply

    async def _begin_once(self, name: str, prompt: str) -> Begun:
        if self._session is not None:
            return await self._session.keyed(f"{self._key}/begin").step(self.begin, name, prompt)
        if self._begun is None:
            self._begun = await self.begin(name, prompt)
        return self._begun

    # --- the two steps. Their names and arguments are stored, so they never change. ---

    @tool(effect="unsafe")
    async def begin(self, agent: str, prompt: str) -> Begun:
        """Start the program and return its id, or its answer if it has no id."""
        del agent
        self._has_seen_all = True
        live = self._start(self._agent.argv(prompt), prompt, self._agent.form)
        try:
            if await self._read_to_session(live):
                self._live = live
                return Begun(session=live.report.session, form=live.form.name)
        finally:
            # A program that has printed its id goes on while the id is stored.
            if self._live is not live:
                await live.stop()
        return Begun(reply=self._conclude(live))

    async def finish(self, agent: str, session: str, form: str) -> AgentReply:
        """Read the rest of the running program, or let the program go on with its conversation."""
        del agent
        live, self._live = self._live, None
        if live is None:
            live = await self._resumed(self._conversation or session, FORMS.get(cast("FormName", form)))
        else:
            await self._read_to_end(live)
        return self._conclude(live)

    # --- the program ---

    async def _resumed(self, session: str, form: Form | None) -> _Live:
        """Let the program go on with its conversation; return it when it has ended."""
        again = AGAIN.replace("{prompt}", self._prompt)
        live = self._start(self._agent.argv_to_resume(form, session, again), again, form, session)
        await self._read_to_end(live)
        if not is_lost(live.report, live.form, "" if live.finished is None else live.finished.stderr):
            return live
        # The programs save a conversation some time after they have begun to work, so a lost one proves nothing. Only who has read
        # every line of it knows that no tool was called.
        if not (self._has_seen_all and not self._worked) and self._agent.if_lost != "restart":
            raise lost_conversation(self._agent.name, session)
        live = self._start(self._agent.argv(again), again, form)
        await self._read_to_end(live)
        return live

    def _start(self, argv: tuple[str, ...], prompt: str, form: Form | None, session: str = "") -> _Live:
        """Start the program. session: the conversation to go on with, for a program that we speak with."""
        left = self._time_left()
        talks = form is not None and form.talks
        # A prompt that is an argument, or goes into a conversation, is not written too: the program would read it twice.
        text = None if talks or prompt in argv else prompt
        reader = Guessing() if form is None else form.reader()
        try:
            process = Process(self._agent.command(argv, text, left, talks=talks))
        except ProcessError as error:
            fault = self._fault(reader.report, form or FORMS["plain"], None, error.fault)
            raise command_error(fault or error.fault) from error
        self._runs += 1
        if (budget := self._budget) is not None:
            budget.attempt_begun(again=self._runs > 1)
        if not session:
            self._spent = 0.0
        if isinstance(reader, AcpLines):
            reader.begin(prompt, folder=self._agent.folder, session=session, spent=self._spent)
        return _Live(process, reader, form, self._talk(process, reader))

    def _talk(self, process: Process, reader: LineReader) -> Talk | None:
        if not isinstance(reader, AcpLines):
            return None
        agent = self._agent
        terms = Terms(agent.approval, agent.grant, agent.expires).under_caller()
        approval = terms.approval_in(self._session)
        approver = Approver(self._session, approval=approval, grant=terms.grant, expires=terms.expires)
        return Talk(process, reader, Permissions(approver, self._session, self._key))

    def _time_left(self) -> float | None:
        total = self._agent.total(is_stream=self._feed is not None)
        if total is None:
            return None
        left = self._began + total - asyncio.get_running_loop().time()
        if left <= 0:
            raise command_error(msgspec.structs.replace(self._unfinished(total), retryable=False))
        return left

    def _unfinished(self, total: float) -> Fault:
        """Return the fault of a run that took longer than the limit for everything."""
        context = {"limit": "timeout", "timeout_s": total, "duration_ms": self._took_ms, "agent": self._agent.name}
        return Fault.of(
            "PROVIDER_STREAM_STALLED", f"{self._agent.name} did not finish within {total:g} s", context=context
        )

    async def _read_to_session(self, live: _Live) -> bool:
        """Read until the program has printed an id that it can be resumed with. False: it has ended without one."""
        async for _ in self._read(live):
            if live.report.session and self._agent.can_resume(live.form, live.report):
                return not live.report.ended
        return False

    async def _read_to_end(self, live: _Live) -> None:
        try:
            async for _ in self._read(live):
                pass
        finally:
            await live.stop()

    async def _read(self, live: _Live) -> AsyncIterator[None]:
        """Read the lines, pass their parts on, and note how the program ended."""
        try:
            await self._talk_on(live)
            async for line in live.lines:
                for part in live.reader.read(line):
                    await self._show(part)
                # Before we answer: the id of a conversation is stored before its prompt is sent.
                yield
                await self._talk_on(live)
                if live.report.ended:
                    await self._read_rest(live)
                    return
            live.ended(None, await live.process.finished())
        except ProcessError as error:
            live.ended(error, error.finished)

    async def _talk_on(self, live: _Live) -> None:
        if live.talk is not None:
            await live.talk.perform()

    async def _show(self, part: AgentPart) -> None:
        if self._feed is not None:
            for masked in self._feed.masked(part):
                await self._feed.put(masked)

    async def _read_rest(self, live: _Live) -> None:
        """The answer is complete. Read what else the program prints before it ends, for a moment."""
        try:
            async with asyncio.timeout(_EXIT_S):
                async for line in live.lines:
                    live.reader.read(line)
                live.finished = await live.process.finished()
        except TimeoutError as error:
            # It hangs, and is stopped. A limit that passes only now changes nothing: the answer is complete.
            live.finished = error.finished if isinstance(error, ProcessError) else None
        except ProcessError as error:
            live.finished = error.finished

    async def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.stop()

    # --- the end ---

    def _conclude(self, live: _Live) -> AgentReply:
        """Return the reply of a program that has ended, or raise why there is none."""
        report = live.report
        if live.talk is not None:
            # The limit for everything is one of work, not of waiting.
            self._began += live.talk.waited
        self._conversation = report.session or self._conversation
        self._worked = self._worked or report.worked
        self._usage, self._usd = _sum(self._usage, report.usage), _sum(self._usd, report.usd)
        self._spent += report.usd or 0.0
        if report.usage is None and report.usd is not None:
            # A budget takes a cost only with a usage. This program says what it cost, and not how many tokens that were.
            report.usage = Usage()
        if (budget := self._budget) is not None:
            budget.attempt_ended(report, again=self._runs > 1)
            budget.charge(turns=report.turns)
        fault = self._fault(report, live.form, live.finished, live.stopped)
        if fault is not None:
            raise command_error(fault)
        answer = report.answer or ""
        return AgentReply(
            text=answer if self._session is None else self._session.storable(answer),
            turns=report.turns,
            tool_calls=report.tool_calls,
            usage=self._usage,
            usd=self._usd,
            model=report.model,
            session=self._conversation,
            agent=self._agent.name,
        )

    def _fault(self, report: Report, form: Form, finished: Finished | None, stopped: Fault | None) -> Fault | None:
        agent = self._agent
        total = agent.total(is_stream=self._feed is not None)
        is_late = stopped is not None and stopped.context.get("limit") == "timeout"
        if is_late and total is not None:
            # The program was stopped after what was left of the limit; a person knows the limit.
            stopped = self._unfinished(total)
        resumes = bool(self._conversation and agent.can_resume(form, report))
        now = agent.runtime.clock.wall()
        fault = command_fault(report, form, finished, stopped, agent=agent.name, resumes=resumes, now=now)
        if fault is None or not is_late:
            return fault
        # That of the whole work, not of its last program.
        return msgspec.structs.replace(fault, context={**fault.context, "duration_ms": self._took_ms})

    @property
    def _took_ms(self) -> int:
        return round((asyncio.get_running_loop().time() - self._began) * 1000)

    @property
    def _budget(self) -> Budget | None:
        around = in_force(self._operation)
        return None if around is None else around.budget


def _sum(first: T | None, second: T | None) -> T | None:
    """Return the sum of what is known."""
    return first if second is None else second if first is None else first + second


def _target_of(agent: CommandAgent) -> Target:
    """Return whose circuits count the run. In a role of the agent's name, the role counts for the circuit `agent:NAME`."""
    # Two permits of one circuit for one run would count it twice, and a half-open circuit has only one permit.
    around = in_force(AMBIENT.get())
    while around is not None:
        if isinstance(around, Operation) and around.plan.per_operation and around.plan.target.agent == agent.name:
            return Target(service=agent.target.service)
        around = around.around
    return agent.counted
