"""`Budget`: the one ledger of seconds, money, tokens, turns and attempts, for everything called inside it.

Invariant: an inner budget can spend no more than its outer budget has left, and each charge counts in both.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.events import BudgetWarning
from holdfast.faults import BudgetError, InvalidError
from holdfast.policies.budget import Ledger, Left, Limits, Spend, costs_nothing
from holdfast.policies.models.prices import LIST_PRICES, Prices
from holdfast.policies.models.usage import cost_of, model_of, usage_of
from holdfast.runtime.ambient import AMBIENT, in_force, on_clock
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token
    from typing import Self

    from holdfast.faults import Fault
    from holdfast.policies.budget import Reached
    from holdfast.runtime.ambient import Ambient, Monotonic

__all__ = [
    "Budget",
    "Charges",
    "charge_answer",
    "charge_attempt",
    "charge_failure",
    "is_budget_spent",
    "take_back_attempt",
]


class Budget:
    """What everything inside a `with` block may spend together, in seconds, money, tokens, turns and attempts.

    Every attempt made inside is charged. One that failed is charged by an estimate if the service may have worked on it, and only
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
        self._lock = threading.Lock()
        self._token: Token[Ambient | None] | None = None
        self._around: Ambient | None = None

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
        with self._lock:
            return self._open().left(*self._now())

    def spend(self) -> Spend:
        """Return what was spent so far, and how much of it on retries and fallbacks.

        Raises `InvalidError` before the budget is entered.
        """
        with self._lock:
            return self._open().spend()

    def charge(self, *, usd: float | None = None, tokens: int | None = None, turns: int = 0) -> None:
        """Charge what no recovery sees, such as a turn of an agent: `budget.charge(turns=1)`.

        Passing a limit raises nothing here; the next call inside the budget raises. A negative amount raises
        `InvalidError`.
        """
        with self._lock:
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
            with self._lock:
                self._open().settle_turn(used=used)
            self._warn()

    def take_turn(self) -> None:
        """Charge a turn if one is left: `budget.take_turn()`. Raises `BudgetError` if all are used, or reserved by others."""
        self._reserve_turn()
        with self._lock:
            self._open().settle_turn(used=True)
        self._warn()

    def _reserve_turn(self) -> None:
        with self._lock:
            reached = self._open().reserve_turn()
        if reached is not None:
            raise BudgetError.because(**_facts(reached))

    @property
    def is_out_of_turns(self) -> bool:
        """Whether all turns of this budget itself, and not of an outer one, are used or reserved."""
        with self._lock:
            return self._open().accounts[0].turns_taken() is not None

    def __repr__(self) -> str:
        return repr(self._limits).replace("Limits(", "Budget(", 1)

    def __enter__(self) -> Self:
        if self._token is not None:
            raise InvalidError.saying("Budget", "one block at a time", "a budget that is entered already")
        around = self._around = in_force(AMBIENT.get())
        outer = None if around is None else around.budget
        if outer is not None:
            # The lock is shared with the outer budgets, because a charge changes all their ledgers in one step.
            self._lock = outer._lock  # noqa: SLF001 - one lock guards the whole tree
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
            with self._lock:
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
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            self._open().charge(attempts=1, recovery=again)
        self._warn()

    def attempt_taken_back(self, *, again: bool) -> None:
        """For recoveries: take back the charge of an attempt whose calls are made, and charged, by other recoveries."""
        with self._lock:
            self._open().take_back_attempt(recovery=again)

    def attempt_ended(self, answer: object, *, again: bool) -> None:
        """For recoveries: charge the usage that an answer reports. Usage that is not reported is estimated, not free."""
        usage = usage_of(answer)
        with self._lock:
            ledger = self._open()
            if usage is None:
                # A call that failed may have been billed all the same.
                ledger.charge(unknown=1, recovery=again)
            else:
                model = model_of(answer)
                # An answer that knows its cost knows it better than a table of list prices.
                reported = cost_of(answer)
                cost = self._prices.cost(model, usage) if reported is None else reported
                if cost is None:
                    ledger.note_unpriced(model or "")
                ledger.charge(usd=cost, tokens=usage.total, settled=1, unknown=int(cost is None), recovery=again)
        self._warn()

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
        with self._lock:
            reached = self._open().warnings(*self._now())
        # Emitted after the lock is released, because a reader of the event may read the budget.
        for limit in reached:
            runtime = self._runtimes[limit.level]
            at = runtime.clock.wall()
            runtime.bus.emit(BudgetWarning(at=at, unit=limit.unit, used=limit.used, limit=limit.limit))


def _facts(reached: Reached) -> dict[str, Any]:
    """Return the limit that is spent, as an error's context."""
    return {"unit": reached.unit, "limit": _number(reached.limit), "used": _number(reached.used)}


def _number(amount: float) -> int | float:
    """Return an amount as people read it in a message: 4 attempts and not 4.0, 0.8 seconds and not 0.8000001."""
    return int(amount) if amount == int(amount) else float(f"{amount:g}")


class Charges:
    """Charges the attempts of one operation to its budget. A call is charged once, however many recoveries are around it.

    If other recoveries make the calls of an attempt, they charge them. The attempt itself is then charged only for
    usage that its answer reports beyond theirs.

    `of_tool`: the call goes to a tool. A tool is no model, so it uses what its answer reports, and otherwise nothing.
    """

    __slots__ = ("_answers_inside", "_budget", "_of_tool")

    def __init__(self, budget: Budget, *, of_tool: bool = False) -> None:
        self._budget = budget
        self._of_tool = of_tool
        self._answers_inside: list[object] | None = None
        """Answers of recoveries inside the present attempt; None if the attempt makes its calls itself."""

    def begin(self, *, again: bool) -> None:
        """Charge an attempt that begins. A recovery inside it may take the charge back."""
        self._answers_inside = None
        self._budget.attempt_begun(again=again)

    def take_back(self, *, again: bool) -> None:
        """A recovery inside the attempt makes the calls and is charged for them."""
        # Several recoveries may run inside an attempt, but it was charged once, so the charge is taken back once.
        if self._answers_inside is None:
            self._answers_inside = []
            self._budget.attempt_taken_back(again=again)

    def end(self, answer: object, outer: Charges | None, *, again: bool) -> None:
        """Charge what an attempt used, as its answer reports it, and pass the answer on to the outer operation."""
        # If a recovery inside returned this answer, the answer was charged there. This attempt only passes it on.
        inside = self._answers_inside
        reports_usage = usage_of(answer) is not None
        if (inside is None and not self._of_tool) or (
            reports_usage and all(answer is not other for other in inside or ())
        ):
            self._budget.attempt_ended(answer, again=again)
        if outer is not None and reports_usage:
            outer.remember(answer)

    def end_failed(self, fault: Fault, *, again: bool) -> None:
        """Charge an attempt that failed and reports no usage. What the service rejected was not worked on and costs nothing."""
        if self._answers_inside is None and not self._of_tool and not costs_nothing(fault):
            self._budget.attempt_ended(None, again=again)

    def end_copy(self) -> None:
        """Charge a hedged copy of a call. Nobody knows what it used."""
        if not self._of_tool:
            self._budget.attempt_ended(None, again=True)

    def remember(self, answer: object) -> None:
        """Remember an answer that a recovery inside the attempt was charged for."""
        if self._answers_inside is not None:
            self._answers_inside.append(answer)


# --- what operations are charged. Each `op` is an `Operation`; its charges are None where there is no budget around it. ---


def charge_attempt(op: Any) -> None:
    """Charge the attempt that begins."""
    if op.charges is not None:
        op.charges.begin(again=_is_recovery(op))


def take_back_attempt(op: Any) -> None:
    """Take the charge of the present attempt back: an operation inside it makes the calls and is charged for them."""
    if op.charges is not None:
        op.charges.take_back(again=_is_recovery(op))


def charge_failure(op: Any, fault: Fault) -> None:
    """Charge the present attempt, which failed."""
    if op.charges is not None:
        op.charges.end_failed(fault, again=_is_recovery(op))


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
