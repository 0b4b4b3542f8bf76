"""`Budget`: the one ledger of seconds, money, tokens, turns and attempts, for everything called inside it.

Invariant: an inner budget can spend no more than its outer budget has left, and each charge counts in both.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast._lazy import lazy_module
from holdfast.events import BudgetWarning
from holdfast.faults import BudgetError, InvalidError
from holdfast.policies.budget import NANO, Ledger, Left, Limits, Reservation, Spend, costs_nothing
from holdfast.policies.models.prices import LIST_PRICES, Prices
from holdfast.policies.models.usage import Usage, cost_of, model_of, usage_of
from holdfast.runtime.ambient import AMBIENT, in_force, on_clock
from holdfast.runtime.reservations import Reservations, current_owner
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator
    from contextvars import Token
    from typing import Self

    from holdfast.faults import Fault
    from holdfast.policies.budget import Reached
    from holdfast.policies.models.quote import Quote
    from holdfast.policies.reservation import Claim
    from holdfast.runtime.ambient import Ambient, Monotonic
    from holdfast.runtime.reservations import CallClaim
else:
    logging = lazy_module("logging", globals())

__all__ = [
    "Budget",
    "Charges",
    "charge_answer",
    "charge_attempt",
    "charge_failure",
    "charge_stopped",
    "is_budget_spent",
    "take_back_attempt",
    "take_back_outer_attempt",
]


class Budget:
    """What everything inside a `with` block may spend together, in seconds, money, tokens, turns and attempts.

    Every attempt made inside is charged. Where money or tokens are limited, the most that a call can cost is reserved before it is sent: its input,
    and the longest answer that it allows. A call that does not fit waits until others are settled. If that cannot help, it raises `BudgetError` and is not
    sent. An attempt that failed is charged by an estimate if the service may have worked on it, and only
    as an attempt if it was rejected. When a limit is spent, calls raise `BudgetError` and no retry is
    made. Budgets nest: a charge counts in every outer budget too. A task that outlives the block is free of the seconds; it is
    still charged, and the other limits hold for it. Wrong options raise `InvalidError`.

        from holdfast import Budget, recover

        with Budget(seconds=120, usd=0.50) as budget:
            recover("claude").call(ask, "hello")
            print(budget.left(), budget.spend())

    seconds, usd, tokens, turns, attempts: the limits; None is no limit.
    attempts: every attempt of every recovery counts, those of tools too. `turns` counts the answers that an agent got.
    estimate_usd, estimate_tokens: what one call counts if its answer reports no usage. The known SDKs report theirs. A tool that reports none
    costs nothing.
    warn_at: the share of a limit at which a `BudgetWarning` is emitted, once for each limit.
    prices: what tokens cost; by default a table of list prices. If money is limited, a model without a price raises
    `BudgetError`: before the call if an agent or a recovering client names it, else before the call after its answer.
    runtime: its clock measures the seconds and its readers get the warnings; by default the default runtime.
    """

    @options.suggests
    def __init__(
        self,
        *,
        seconds: float | None = None,
        usd: float | None = None,
        tokens: int | None = None,
        turns: int | None = None,
        attempts: int | None = None,
        estimate_usd: float | None = None,
        estimate_tokens: int | None = None,
        warn_at: float = 0.8,
        prices: Prices | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._limits = Limits(
            seconds=seconds,
            usd=usd,
            tokens=tokens,
            turns=turns,
            attempts=attempts,
            estimate_usd=estimate_usd,
            estimate_tokens=estimate_tokens,
            warn_at=warn_at,
        )
        if not isinstance(prices, Prices | None):
            raise InvalidError.at("budget.prices", "a table of Prices or None", prices)
        if runtime is not None and not isinstance(runtime, Runtime):
            raise InvalidError.at("budget.runtime", "a Runtime or None", runtime)
        self._prices = LIST_PRICES if prices is None else prices
        self._given_runtime = runtime
        self._runtimes: tuple[Runtime, ...] = ()
        """The runtime of this budget, then the runtimes of the outer budgets. Set while the budget is entered."""
        self._outer_clocks: tuple[Monotonic, ...] = ()
        """The clocks of the outer budgets; empty if all have the same clock."""
        self._ledger: Ledger | None = None
        self.reservations = Reservations()
        """For recoveries: what calls that are under way may cost, in this budget and those around it."""
        self._warned_of_unknown = False
        self._token: Token[Ambient | None] | None = None
        self._around: Ambient | None = None

    holder: Charges | None = None
    """For agents: who has reserved the price of a request for whatever makes its calls inside."""

    over = False
    """Always False: a task that was started inside is charged here however long it runs. Only the seconds end with the block."""

    @property
    def around(self) -> Ambient | None:
        """For recoveries: the scope in which this budget was entered."""
        return self._around

    def deadline_on(self, monotonic: Monotonic) -> float | None:
        """For recoveries: return when the time of this budget or of the scope around it is over, on the given clock."""
        clock = self._clock
        own = self._open().deadline
        outer = None if self._around is None else self._around.deadline_on(clock)
        return on_clock(outer if own is None or (outer is not None and outer < own) else own, clock, monotonic)

    def cut_on(self, monotonic: Monotonic) -> float | None:
        """For recoveries: the same. When the time of a budget is over, an answer under way is cut too."""
        clock = self._clock
        own = self._open().deadline
        outer = None if self._around is None else self._around.cut_on(clock)
        return on_clock(outer if own is None or (outer is not None and outer < own) else own, clock, monotonic)

    @property
    def run(self) -> str:
        """For recoveries: the run of the operation around it; empty if there is none."""
        return "" if self._around is None else self._around.run

    @property
    def budget(self) -> Budget:
        """For recoveries: the budget that attempts inside are charged to, which is this one."""
        return self

    def left(self) -> Left:
        """Return what may still be spent, by the tightest limit of this budget and the outer budgets. None: no limit.

        Raises `InvalidError` before the budget is entered.
        """
        with self.reservations.lock:
            return self._open().left(*self._now())

    def spend(self) -> Spend:
        """Return what was spent so far, and how much of it on retries and fallbacks.

        Raises `InvalidError` before the budget is entered.
        """
        with self.reservations.lock:
            return self._open().spend()

    def charge(self, *, usd: float | None = None, tokens: int | None = None, turns: int = 0) -> None:
        """Charge what no recovery sees, such as a turn of an agent: `budget.charge(turns=1)`.

        Passing a limit raises nothing here; the next call inside the budget raises. A negative amount raises
        `InvalidError`.
        """
        with self.reservations.lock:
            self._open().charge(usd=usd, tokens=tokens, turns=turns)
        self._warn()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Reserve a turn for one request of an agent. It is charged when the block ends, and given back if it raises.

            with budget.turn():
                reply = await model.exchange(request)

        Agents that run side by side cannot use more turns than there are. Raises `BudgetError` if all are used or reserved.
        """
        self._reserve_turn()
        used = False
        try:
            yield
            used = True
        finally:
            with self.reservations.lock:
                self._open().settle_turn(used=used)
            self._warn()

    def take_turn(self) -> None:
        """Charge a turn if one is left: `budget.take_turn()`. Raises `BudgetError` if all are used, or reserved by others."""
        self._reserve_turn()
        with self.reservations.lock:
            self._open().settle_turn(used=True)
        self._warn()

    def _reserve_turn(self) -> None:
        with self.reservations.lock:
            reached = self._open().reserve_turn()
        if reached is not None:
            raise BudgetError.because(**_facts(reached))

    @property
    def is_out_of_turns(self) -> bool:
        """Whether all turns of this budget itself, and not of an outer one, are used or reserved."""
        with self.reservations.lock:
            return self._open().accounts[0].turns_taken() is not None

    def __repr__(self) -> str:
        return repr(self._limits).replace("Limits(", "Budget(", 1)

    def __enter__(self) -> Self:
        if self._token is not None:
            raise InvalidError.saying("Budget", "one block at a time", "a budget that is entered already")
        around = self._around = in_force(AMBIENT.get())
        outer = None if around is None else around.budget
        if outer is not None:
            # Shared with the outer budgets, because a charge changes all their ledgers in one step.
            self.reservations = outer.reservations
        parent = None if outer is None else outer._open()  # noqa: SLF001 - one ledger tree
        outer_runtimes = () if outer is None else outer._runtimes  # noqa: SLF001 - each level keeps its own clock
        # The default runtime may be replaced while the block runs; its clock must not change in the middle.
        own = default_runtime() if self._given_runtime is None else self._given_runtime
        self._runtimes = (own, *outer_runtimes)
        clock = self._clock
        clocks = tuple(runtime.clock.monotonic for runtime in outer_runtimes)
        self._outer_clocks = () if all(other == clock for other in clocks) else clocks
        self._ledger = Ledger(self._limits, now=clock(), parent=parent)
        self._token = AMBIENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            with self.reservations.lock:
                # A task that outlives the block goes on. The seconds were for the block, so they do not limit that task.
                self._open().stop_clock(self._clock())
            AMBIENT.reset(token)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    # --- called by operations ---

    def exhausted(self) -> dict[str, Any] | None:
        """For recoveries: return which limit is spent, as an error's context; None if something is left of every limit."""
        with self.reservations.lock:
            reached = self._open().check(*self._now())
        if reached is None:
            return None
        return _facts(reached)

    def check(self, model: str) -> None:
        """For recoveries: raise `BudgetError` if a limit is spent, or money is limited and the cost cannot be known.

        `model` is the model that the call names; empty if it names none. Then the models of earlier answers count.
        """
        spent = self.exhausted()
        if spent is not None:
            raise BudgetError.because(**spent)
        with self.reservations.lock:
            ledger = self._open()
            unknown = model if model and ledger.limits_money and not self._prices.knows(model) else ledger.unpriced
        if unknown is None:
            return
        named = f"the price of {unknown}" if unknown else "which model answers"
        price = f"prices=LIST_PRICES.with_prices({{{unknown or 'model'!r}: Price(input=…, output=…)}})"
        message = (
            f"This budget limits money, and nobody knows {named}: give it {price}, or estimate_usd=… for each call"
        )
        raise BudgetError.because(message, unit="usd", model=unknown)

    def attempt_begun(self, *, again: bool) -> None:
        """For recoveries: charge an attempt that begins. `again` counts it as a cost of recovery."""
        # Charged before the call: calls that run at the same time cannot overdraw the budget together.
        with self.reservations.lock:
            self._open().charge(attempts=1, recovery=again)
        self._warn()

    def attempt_taken_back(self, *, again: bool) -> None:
        """For recoveries: take back the charge of an attempt whose calls are made, and charged, by other recoveries."""
        with self.reservations.lock:
            self._open().take_back_attempt(recovery=again)

    def attempt_ended(
        self, answer: object, *, again: bool, claim: Claim | None = None, sent: Sent | None = None
    ) -> None:
        """For recoveries: charge the usage that an answer reports. Usage that is not reported is estimated, not free.

        `claim` is the call's reservation, which goes back. `sent` is what is known about the request and its answer.
        """
        ledger, prices = self._open(), self._prices
        usage = usage_of(answer)
        reported = cost_of(answer)
        models = [name for name in (model_of(answer), sent.model if sent is not None else None) if name]
        is_guess = usage is None and sent is not None and (usage := sent.guess()) is not None
        # An answer that knows its cost knows it better than a table of list prices.
        costs = (prices.cost(name, usage) for name in models) if reported is None else (reported,)
        cost = next((usd for usd in costs if usd is not None), None)

        def apply() -> Iterable[Callable[[], None]]:
            most = Reservation() if claim is None else claim.reservation
            if usage is not None and cost is None:
                ledger.note_unpriced(next(iter(models), ""))
            if usage is None:
                # A call that failed may have been billed all the same.
                ledger.charge(unknown=1, recovery=again)
            elif is_guess:
                whole = sent is not None and sent.is_stream
                ledger.charge_guess(usd=cost, tokens=usage.total, most=most, whole=whole, recovery=again)
            else:
                ledger.charge(usd=cost, tokens=usage.total, settled=1, unknown=int(cost is None), recovery=again)
            # After the charge: what goes back must not be given to another call before it is counted.
            then = [] if claim is None else self.reservations.leave_locked(claim)
            return [*then, *self._due_warnings()]

        if usage is not None and not is_guess:
            self.note_answer(usage, cost)
        if (usage is None or is_guess) and ledger.limits_usage:
            self._warn_of_unknown(next(iter(models), ""))
        self.reservations.settle(apply)

    def note_answer(self, usage: Usage, usd: float | None) -> None:
        """For agents: an answer reported its usage, and costs this much; None: nobody knows its price."""

    def reservation(self, quote: Quote | None) -> Reservation:
        """For recoveries: return what to reserve for a call with this quote. Without a quote or price it is what calls usually use."""
        ledger = self._open()
        if quote is None:
            return ledger.usual()
        prices = (self._prices.cost(quote.model, usage) for usage in quote.usages())
        usd = max((price for price in prices if price is not None), default=None)
        if usd is None:
            return Reservation(usd=ledger.usual().usd, tokens=quote.tokens)
        return Reservation(usd=round(usd * NANO), tokens=quote.tokens, firm=True)

    @property
    def limits_usage(self) -> bool:
        """For recoveries: whether this budget, or one around it, limits money or tokens."""
        return self._open().limits_usage

    @property
    def ledger(self) -> Ledger:
        """For recoveries: its accounts. The lock of `reservations` guards them."""
        return self._open()

    def _warn_of_unknown(self, model: str) -> None:
        """Warn once per budget that a call reported no usage."""
        if self._warned_of_unknown:
            return
        self._warned_of_unknown = True
        logging.getLogger("holdfast").warning(
            "%r: a call%s reported no usage, so its cost is estimated. spend().unknown counts such calls",
            self,
            f" of {model}" if model else "",
        )

    def _open(self) -> Ledger:
        if self._ledger is None:
            raise InvalidError.saying(
                "Budget", "`with budget:` around what it is for", "a budget that was never entered"
            )
        return self._ledger

    @property
    def _clock(self) -> Monotonic:
        return self._runtimes[0].clock.monotonic

    def _now(self) -> tuple[float, tuple[float, ...]]:
        """Return the reading of this budget's clock, and the readings of the outer budgets' clocks if these differ."""
        return self._clock(), tuple(clock() for clock in self._outer_clocks)

    def _warn(self) -> None:
        with self.reservations.lock:
            due = self._due_warnings()
        # Emitted after the lock is released, because a reader of the event may read the budget.
        for emit in due:
            emit()

    def _due_warnings(self) -> list[Callable[[], None]]:
        return [partial(self._emit, limit) for limit in self._open().warnings(*self._now())]

    def _emit(self, limit: Reached) -> None:
        runtime = self._runtimes[limit.level]
        at = runtime.clock.wall()
        runtime.bus.emit(BudgetWarning(at=at, unit=limit.unit, used=limit.used, limit=limit.limit))


def _facts(reached: Reached) -> dict[str, Any]:
    """Return the limit that is spent, as an error's context."""
    return {"unit": reached.unit, "limit": _number(reached.limit), "used": _number(reached.used)}


def _number(amount: float) -> int | float:
    """Return an amount as people read it in a message: 4 attempts and not 4.0, 0.8 seconds and not 0.8000001."""
    return int(amount) if amount == int(amount) else float(f"{amount:g}")


class Sent:
    """What is known about the request of the present attempt, and about its answer so far."""

    __slots__ = ("is_stream", "model", "output", "quote", "used")

    def __init__(self, quote: Quote | None, model: str) -> None:
        self.quote = quote
        self.model = model or ("" if quote is None else quote.model)
        self.is_stream = False
        """Its answer comes in parts, which are counted."""
        self.output = 0
        """Tokens of the answer that were seen."""
        self.used: Usage | None = None
        """What the answer has reported so far."""

    def guess(self) -> Usage | None:
        """Return what the attempt has used as far as it is known; None: nothing is."""
        if self.used is None:
            return None if self.quote is None else self.quote.seen(self.output)
        return msgspec.structs.replace(self.used, output=max(self.used.output, self.output))


class Charges:
    """Charges the attempts of one operation to its budget. A call is charged once, however many recoveries are around it.

    If other recoveries make the calls of an attempt, they charge them. The attempt itself is then charged only for
    usage that its answer reports beyond theirs.

    `of_tool`: the call goes to a tool. A tool is no model, so it uses what its answer reports, and otherwise nothing.
    `model`: the model that the call names, if its provider sells it under this name.
    """

    __slots__ = (
        "_again",
        "_answers_inside",
        "_budget",
        "_claim",
        "_of_tool",
        "_on_behalf_of",
        "copies",
        "is_sent",
        "model",
        "sent",
    )

    def __init__(self, budget: Budget, *, of_tool: bool = False, model: str = "") -> None:
        self._budget = budget
        self._of_tool = of_tool
        self.model = model
        self.sent: Sent | None = None
        self.is_sent = False
        """The present attempt is made, and not charged yet."""
        self._claim: CallClaim | None = None
        """The reservation of the present attempt."""
        self._on_behalf_of: Charges | None = None
        """The function, in another task, whose request this call makes."""
        self.copies: list[CallClaim] = []
        """The reservations of hedged copies."""
        self._answers_inside: list[object] | None = None
        """Answers of recoveries inside the present attempt; None if the attempt makes its calls itself."""
        self._again = False
        """Whether the present attempt counts as a cost of recovery."""

    @classmethod
    def of(cls, budget: Budget, plan: Any) -> Charges:
        """Return the charges of an operation with this plan."""
        model = plan.target.model if plan.through_client else ""
        return cls(budget, of_tool=bool(plan.target.tool), model=model)

    # --- before the call ---

    @property
    def reserves(self) -> bool:
        """Whether calls need a reservation."""
        return not self._of_tool and self._budget.limits_usage

    @property
    def reservations(self) -> Reservations:
        """The reservations of its budgets."""
        return self._budget.reservations

    @property
    def ledger(self) -> Ledger:
        """The accounts of its budgets."""
        return self._budget.ledger

    def exhausted(self) -> dict[str, Any] | None:
        """Return which limit is spent, as an error's context; None if something is left of every limit."""
        return self._budget.exhausted()

    def prepare(self, quote: Quote | None) -> Reservation:
        """Return what to reserve for the next attempt."""
        self.sent = Sent(quote, self.model)
        return self._budget.reservation(quote)

    @property
    def copied(self) -> CallClaim | None:
        """The reservation of the present call, which a copy of it needs too; None: there is none."""
        return self._claim

    def hold(self, claim: CallClaim) -> None:
        """Keep a reservation until the attempt ends."""
        self._claim = claim
        self.is_sent = True

    def take_over(self) -> None:
        """Release what was reserved from outside for the call that this operation makes itself."""
        if self._budget.holder is not None:
            self._budget.holder.release()

    def release(self) -> None:
        """Give the reservation back: no call is made, or other recoveries make it."""
        claim, self._claim = self._claim, None
        if claim is not None:
            self.reservations.leave(claim)

    def release_copy(self) -> None:
        """Give the reservation of a copy back that is not made."""
        if self.copies:
            self.reservations.leave(self.copies.pop())

    def begin(self, *, again: bool, sends: bool = True) -> None:
        """Charge an attempt that begins. A recovery inside it may take the charge back.

        `sends`: the call is made at once. Otherwise it waits for a place first, and `hold` says when it is made.
        """
        self._answers_inside = None
        self.is_sent, self._again = sends, again
        self._budget.attempt_begun(again=again)

    def take_back(self) -> None:
        """A recovery inside the attempt makes the calls and is charged for them."""
        # Several recoveries may run inside an attempt, but it was charged once, so the charge is taken back once.
        if self._answers_inside is None:
            self._answers_inside = []
            self.release()
            self._budget.attempt_taken_back(again=self._again)

    def pass_on_to(self, other: Charges) -> None:
        """A call in another task makes the request of this function, and is charged for it."""
        other._on_behalf_of = self
        self.take_back()

    # --- during a stream ---

    def saw(self, tokens: int) -> None:
        """Count tokens of an answer that arrives in parts."""
        if self.sent is not None:
            self.sent.is_stream = True
            self.sent.output += tokens
        if (claim := self._claim) is not None:
            claim.parts += 1
            # Its reader cannot wait for it. A stream may be opened by one task and read by another.
            if claim.owner != (reader := current_owner()):
                self.reservations.belongs_to(claim, reader)

    def learned(self, answer: object) -> None:
        """Keep what a stream has reported about its usage so far."""
        if self.sent is not None and (usage := usage_of(answer)) is not None:
            self.sent.used = usage
            self.sent.model = model_of(answer) or self.sent.model

    # --- after the call ---

    def end(self, answer: object, outer: Charges | None, *, again: bool) -> None:
        """Charge what an attempt used, as its answer reports it, and pass the answer on to the outer operation."""
        # If a recovery inside returned this answer, the answer was charged there. This attempt only passes it on.
        inside = self._answers_inside
        reports_usage = usage_of(answer) is not None
        if (inside is None and not self._of_tool) or (
            reports_usage and all(answer is not other for other in inside or ())
        ):
            self._charge(answer, again=again)
        self._over()
        for around in (outer, self._on_behalf_of):
            if around is not None and reports_usage:
                around.remember(answer)

    def end_failed(self, fault: Fault, *, again: bool) -> None:
        """Charge an attempt that failed. What the service rejected was not worked on and costs nothing."""
        if self._answers_inside is None and not self._of_tool and self.is_sent and not costs_nothing(fault):
            # An answer that was not accepted, or cannot be read, was paid for.
            rejected = None if fault.partial is None else fault.partial.payload
            answers = (answer for answer in (rejected, fault.context) if usage_of(answer) is not None)
            self._charge(next(answers, None), again=again)
        self._over()

    def end_stopped(self, *, again: bool) -> None:
        """Charge an attempt that was cancelled, or whose stream was left."""
        if self._answers_inside is None and not self._of_tool and self.is_sent:
            if self.sent is not None and self.sent.quote is not None and not self.sent.is_stream:
                # The provider may go on and charge for the whole answer.
                self.sent.output = self.sent.quote.output
            self._charge(None, again=again)
        self._over()

    def end_copy(self) -> None:
        """Charge a hedged copy of a call. Nobody knows what it used."""
        if not self._of_tool:
            claim = self.copies.pop() if self.copies else None
            self._budget.attempt_ended(None, again=True, claim=claim, sent=self.sent)

    def remember(self, answer: object) -> None:
        """Remember an answer that a recovery inside the attempt was charged for."""
        if self._answers_inside is not None:
            self._answers_inside.append(answer)

    def _charge(self, answer: object, *, again: bool) -> None:
        claim, self._claim = self._claim, None
        self._budget.attempt_ended(answer, again=again, claim=claim, sent=self.sent or Sent(None, self.model))

    def _over(self) -> None:
        self.is_sent = False
        self.release()


# --- what operations are charged. Each `op` is an `Operation`; its charges are None where there is no budget around it. ---


def charge_attempt(op: Any, *, sends: bool = True) -> None:
    """Charge the attempt that begins. `sends`: its call is made at once."""
    if op.charges is not None:
        op.charges.begin(again=_is_recovery(op), sends=sends)


def take_back_attempt(op: Any) -> None:
    """Take the charge of the present attempt back: an operation inside it makes the calls and is charged for them."""
    if op.charges is not None:
        op.charges.take_back()


def take_back_outer_attempt(op: Any) -> None:
    """Take back the attempt around an operation that begins: it makes the calls itself, or none at all."""
    if op.charges is not None and not op.attempts and (outer := op.outer) is not None:
        take_back_attempt(outer)


def charge_failure(op: Any, fault: Fault) -> None:
    """Charge the present attempt, which failed."""
    if op.charges is not None:
        op.charges.end_failed(fault, again=_is_recovery(op))


def charge_stopped(op: Any) -> None:
    """Charge the present attempt, which was cancelled, left or rejected. What was never sent costs nothing."""
    if op.charges is None:
        return
    if op.attempts > len(op.history):
        op.charges.end_stopped(again=_is_recovery(op))
    else:
        op.charges.release()


def charge_answer(op: Any, answer: object) -> None:
    """Charge what the present attempt used, as its answer reports it; None: nobody knows."""
    if op.charges is None:
        return
    # A framework wraps the provider's answer in an object of its own, which the price table does not know.
    if op.adapter is not None and answer is not None:
        answer = op.adapter.reported(answer)
    outer = op.outer
    op.charges.end(answer, None if outer is None else outer.charges, again=_is_recovery(op))


def is_budget_spent(op: Any) -> bool:
    """Whether the budget around an operation allows no further call."""
    return op.budget is not None and op.budget.exhausted() is not None


def _is_recovery(op: Any) -> bool:
    """Whether the present attempt would not have been made if the first one, here or around, had succeeded."""
    while op is not None:
        if op.attempts > 1:
            return True
        op = op.outer
    return False
