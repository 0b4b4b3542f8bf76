# ruff: noqa: SLF001 - a block of a budget is a copy of it
"""`Budget`: the one ledger of seconds, money, tokens, turns and attempts, for everything called inside it.

A budget object is one ledger, however many blocks are entered with it. Each block is a copy of the budget, which knows the scope around it
and shares the account (`_Shared`).

Invariant: an inner budget can spend no more than its outer budget has left, and each charge counts in both.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast._lazy import lazy_module
from holdfast.events import BudgetWarning
from holdfast.faults import BudgetError, InvalidError
from holdfast.policies.budget import NANO, Account, Ledger, Left, Limits, Reservation, Spend
from holdfast.policies.models.prices import LIST_PRICES, Prices
from holdfast.policies.models.usage import Usage, answer_id_of, cost_of, is_unfinished, model_of, usage_of
from holdfast.policies.profiles import TASK
from holdfast.runtime.ambient import AMBIENT, in_force, on_clock
from holdfast.runtime.budgets.reservations import RESERVATIONS
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Callable, Iterable, Iterator
    from contextvars import Token
    from types import CodeType, FrameType
    from typing import Self

    from holdfast.policies.budget import Reached
    from holdfast.policies.models.quote import Quote
    from holdfast.policies.reservation import BudgetClaim
    from holdfast.runtime.ambient import Ambient, Monotonic
    from holdfast.runtime.budgets.charges import Charges, SentRequest
else:
    asyncio = lazy_module("asyncio", globals())
    logging = lazy_module("logging", globals())

__all__ = ["Budget"]


_ASYNC_GENERATOR = 0x200
"""The flag of the code of async generators (`inspect.CO_ASYNC_GENERATOR`)."""


class _Shared:
    """What all blocks of a budget share."""

    __slots__ = ("account", "blocks", "runtime", "warned_of_tier", "warned_of_unknown")

    def __init__(self) -> None:
        self.account: Account | None = None
        """None before the first block."""
        self.blocks: list[Budget] = []
        """The blocks that are open, in the order in which they were entered."""
        self.runtime: Runtime | None = None
        self.warned_of_tier = self.warned_of_unknown = False


class Budget:
    """What the recovered calls inside a `with` block may spend together, in seconds, money, tokens, turns and attempts.

    Every attempt made inside is charged. Where money or tokens are limited, the most that a call can cost is reserved before it is sent: its input,
    and the longest answer that it allows. A call that does not fit waits until others are settled. If that cannot help, it raises `BudgetError` and is not
    sent. An attempt that failed is charged by an estimate if the service may have worked on it, and only
    as an attempt if it was rejected. When a limit is spent, calls raise `BudgetError` and no retry is
    made. Budgets nest: a charge counts in every outer budget too. A task that outlives the block is free of the seconds; it is
    still charged, and the other limits hold for it. Wrong options raise `InvalidError`.

    A budget is one ledger: entered again, in a row, inside of itself, or by several tasks and threads at once, it goes on with what it has
    spent. Its seconds run while a block of it is open. Tasks inherit the block they are started in. Threads do not: each enters the budget itself.

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
        warn_at: float = TASK.limits["resource_warning"],
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
        self._shared = _Shared()
        self._latest: Budget | None = None
        """The block that was entered last; None before the first one."""

    reservations = RESERVATIONS
    """For recoveries: what calls that are under way may cost, in all budgets."""

    holder: Charges | None = None
    """For agents: who has reserved the price of a request for whatever makes its calls inside."""

    # --- of a block ---

    _ledger: Ledger | None = None
    """None: this is no block."""
    _runtimes: tuple[Runtime, ...] = ()
    """The runtimes of the ledger's accounts."""
    _outer_clocks: tuple[Monotonic, ...] = ()
    """The clocks of the outer budgets; empty if all have the same clock."""
    _around: Ambient | None = None
    _token: Token[Ambient | None] | None = None
    _entered_by: tuple[int, CodeType] | None = None
    """The frame whose `with` statement it is."""
    _is_left = False
    _is_dropped = False
    """It was left in another context, as by a generator that was dropped. The context that it was entered in still has it."""
    _generator: Callable[[], object] | None = None
    """Returns the async generator that has entered it; None if that was dropped."""

    @property
    def over(self) -> bool:
        """For recoveries: whether a block limits nothing any more, because it was left elsewhere or its generator was dropped.

        Otherwise a task that was started inside is charged here however long it runs. Only the seconds end with the block.
        """
        return self._is_dropped or (self._generator is not None and self._generator() is None)

    @property
    def around(self) -> Ambient | None:
        """For recoveries: the scope in which this budget was entered."""
        return self._around

    def deadline_on(self, monotonic: Monotonic) -> float | None:
        """For recoveries: return when the time of this budget or of the scope around it is over, on the given clock."""
        clock, own = self._clock, self._ends
        outer = None if self._around is None else self._around.deadline_on(clock)
        return on_clock(outer if own is None or (outer is not None and outer < own) else own, clock, monotonic)

    def cut_on(self, monotonic: Monotonic) -> float | None:
        """For recoveries: the same. When the time of a budget is over, an answer under way is cut too."""
        clock, own = self._clock, self._ends
        outer = None if self._around is None else self._around.cut_on(clock)
        return on_clock(outer if own is None or (outer is not None and outer < own) else own, clock, monotonic)

    @property
    def _ends(self) -> float | None:
        return None if self._is_left else self._account.ends

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
        block = self._block()
        with self.reservations.after, self.reservations.lock:
            return block._open().left(*block._now())

    def spend(self) -> Spend:
        """Return what was spent so far, and how much of it on retries and fallbacks.

        Raises `InvalidError` before the budget is entered.
        """
        with self.reservations.after, self.reservations.lock:
            return self._account.spend()

    def charge(self, *, usd: float | None = None, tokens: int | None = None, turns: int = 0) -> None:
        """Charge what no recovery sees, such as a turn of an agent: `budget.charge(turns=1)`.

        Passing a limit raises nothing here; the next call inside the budget raises. A negative amount raises
        `InvalidError`.
        """
        block = self._block()
        with self.reservations.after, self.reservations.lock:
            block._open().charge(usd=usd, tokens=tokens, turns=turns)
        block._warn()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Reserve a turn for one request of an agent. It is charged when the block ends, and given back if it raises.

            with budget.turn():
                reply = await model.exchange(request)

        Agents that run side by side cannot use more turns than there are. Raises `BudgetError` if all are used or reserved.
        """
        block = self._block()
        block._reserve_turn()
        used = False
        try:
            yield
            used = True
        finally:
            block._settle_turn(used=used)

    def take_turn(self) -> None:
        """Charge a turn if one is left: `budget.take_turn()`. Raises `BudgetError` if all are used, or reserved by others."""
        block = self._block()
        block._reserve_turn()
        block._settle_turn(used=True)

    def _reserve_turn(self) -> None:
        with self.reservations.after, self.reservations.lock:
            reached = self._open().reserve_turn()
        if reached is not None:
            raise BudgetError.because(**_facts(reached))

    def _settle_turn(self, *, used: bool) -> None:
        with self.reservations.after, self.reservations.lock:
            self._open().settle_turn(used=used)
        self._warn()

    @property
    def is_out_of_turns(self) -> bool:
        """Whether all turns of this budget itself, and not of an outer one, are used or reserved."""
        with self.reservations.after, self.reservations.lock:
            return self._account.turns_taken() is not None

    def __repr__(self) -> str:
        return repr(self._limits).replace("Limits(", "Budget(", 1)

    def __enter__(self) -> Self:
        return self._enter(sys._getframe(1))

    def __exit__(self, *_: object) -> None:
        self._exit(sys._getframe(1))

    async def __aenter__(self) -> Self:
        return self._enter(sys._getframe(1))

    async def __aexit__(self, *_: object) -> None:
        self._exit(sys._getframe(1))

    def _enter(self, frame: FrameType) -> Self:
        # As `copy.copy` does it, at a third of its cost: each request of an agent enters one.
        block, shared, around = object.__new__(type(self)), self._shared, in_force(AMBIENT.get())
        block.__dict__.update(self.__dict__)
        # The default runtime may be replaced while blocks are open; the clock must not change in the middle.
        runtime = default_runtime() if self._given_runtime is None else self._given_runtime
        with self.reservations.after, self.reservations.lock:
            if shared.runtime is None or not shared.blocks:
                shared.runtime = runtime
            now = shared.runtime.clock.monotonic()
            if shared.account is None:
                shared.account = Account(self._limits, now)
            elif not shared.blocks:
                shared.account.start_clock(now)
            block._place(around, shared.account, shared.runtime)
            shared.blocks.append(block)
        block._entered_by = (id(frame), frame.f_code)
        if frame.f_code.co_flags & _ASYNC_GENERATOR:
            block._generator = _find_generator(frame)
        self._latest = block
        block._token = AMBIENT.set(block)
        return self

    def _place(self, around: Ambient | None, account: Account, runtime: Runtime) -> None:
        """Make this copy the block of an account inside of a scope."""
        outer = None if around is None else around.budget
        self._around = around
        self._ledger = Ledger.of(account, None if outer is None else outer._ledger)
        runtimes = () if outer is None else outer._runtimes
        # Each level keeps its own clock. Inside of itself a budget has no second level.
        self._runtimes = runtimes if len(runtimes) == len(self._ledger.accounts) else (runtime, *runtimes)
        clocks = tuple(each.clock.monotonic for each in self._runtimes)
        self._outer_clocks = () if all(clock == clocks[0] for clock in clocks) else clocks[1:]

    def _exit(self, frame: FrameType) -> None:
        block = self._find_left(frame)
        if block is None:
            return
        block._is_left = True
        if AMBIENT.get() is block and block._token is not None:
            try:
                AMBIENT.reset(block._token)
            except ValueError:
                # Left in another context.
                block._is_dropped = True
        else:
            # Another block was entered inside of it and is still open.
            block._is_dropped = True
        shared = self._shared

        def end() -> Iterable[Callable[[], None]]:
            shared.blocks.remove(block)
            if not shared.blocks and shared.account is not None and shared.runtime is not None:
                # A task that outlives the block goes on. The seconds were for the block, so they do not limit that task.
                shared.account.stop_clock(shared.runtime.clock.monotonic())
            return ()

        # This must not wait for the lock: the garbage collector may close a generator while this very thread holds it.
        self.reservations.settle(end)

    def _find_left(self, frame: FrameType) -> Budget | None:
        """Return the block that is left by `frame`; None: none is open."""
        blocks = [block for block in tuple(self._shared.blocks) if not block._is_left]
        # The `with` statement itself knows best: a generator may be closed anywhere, also inside of another block of this budget.
        mine = [block for block in blocks if block._entered_by == (id(frame), frame.f_code)]
        if mine:
            return mine[-1]
        scope = AMBIENT.get()
        while scope is not None:
            if scope in blocks:
                return scope.budget
            scope = scope.around
        return blocks[-1] if blocks else None

    # --- called by operations ---

    def exhausted(self, *, free: bool = False) -> dict[str, Any] | None:
        """For recoveries: return which limit is spent, as an error's context; None if something is left of every limit.

        `free`: the call asks no model, so only seconds and attempts count.
        """
        block = self._block()
        with self.reservations.after, self.reservations.lock:
            reached = block._open().check(*block._now(), free=free)
        if reached is None:
            return None
        return _facts(reached)

    def check(self, model: str, *, free: bool = False) -> None:
        """For recoveries: raise `BudgetError` if a limit is spent, or money is limited and the cost cannot be known.

        `model` is the model that the call names; empty if it names none. Then the models of earlier answers count.
        `free`: the call asks no model.
        """
        spent = self.exhausted(free=free)
        if spent is not None:
            raise BudgetError.because(**spent)
        if free:
            return
        with self.reservations.after, self.reservations.lock:
            ledger = self._open()
            unknown = model if model and ledger.limits_money and not self._prices.knows(model) else ledger.unpriced
        if unknown is None:
            return
        raise _unpriced(unknown)

    def attempt_begun(self, *, again: bool) -> None:
        """For recoveries: charge an attempt that begins. `again` counts it as a cost of recovery."""
        # Charged before the call: calls that run at the same time cannot overdraw the budget together.
        with self.reservations.after, self.reservations.lock:
            self._open().charge(attempts=1, recovery=again)
        self._warn()

    def attempt_taken_back(self, *, again: bool) -> None:
        """For recoveries: take back the charge of an attempt whose calls are made, and charged, by other recoveries."""
        with self.reservations.after, self.reservations.lock:
            self._open().take_back_attempt(recovery=again)

    def attempt_ended(
        self, answer: object, *, again: bool, claim: BudgetClaim | None = None, sent: SentRequest | None = None
    ) -> None:
        """For recoveries: charge the usage that an answer reports. Usage that is not reported is estimated, not free.

        `claim` is the call's reservation, which goes back. `sent` is what is known about the request and its answer.
        """
        ledger, prices = self._open(), self._prices
        usage = usage_of(answer)
        reported = cost_of(answer)
        models = [name for name in (model_of(answer), sent.model if sent is not None else None) if name]
        is_batch = usage is None and sent is not None and sent.quote is not None and bool(sent.quote.parts)
        is_guess = usage is None and not is_batch and sent is not None and (usage := sent.guess()) is not None
        # An answer that knows its cost knows it better than a table of list prices.
        costs = (prices.cost(name, usage) for name in models) if reported is None else (reported,)
        cost = next((usd for usd in costs if usd is not None), None)
        # Of a tier without a price only the least is known.
        tier = "" if usage is None or reported is not None else usage.tier
        is_dearer = bool(tier) and cost is not None and not any(prices.knows_tier(name, tier) for name in models)

        def apply() -> Iterable[Callable[[], None]]:
            most = Reservation() if claim is None else claim.reservation
            before = dict(ledger.accounts[0].used)
            if usage is not None and cost is None:
                ledger.note_unpriced(next(iter(models), ""))
            if is_batch:
                # What it really uses is in its results, which come hours later.
                most_usd = most.usd / NANO if most.firm else None
                ledger.charge_guess(usd=most_usd, tokens=most.tokens, most=most, whole=True, recovery=again)
            elif usage is None:
                # A call that failed may have been billed all the same.
                ledger.charge(unknown=1, recovery=again)
            elif is_guess:
                whole = sent is not None and sent.is_bounded
                ledger.charge_guess(usd=cost, tokens=usage.total, most=most, whole=whole, recovery=again)
            else:
                ledger.charge(
                    usd=cost, tokens=usage.total, settled=1, unknown=int(cost is None or is_dearer), recovery=again
                )
            if name := answer_id_of(answer):
                now = ledger.accounts[0].used
                owed = Reservation(usd=now["usd"] - before["usd"], tokens=now["tokens"] - before["tokens"])
                ledger.remember_answer(name, owed if is_unfinished(answer) and usage_of(answer) is None else None)
            # After the charge: what goes back must not be given to another call before it is counted.
            then = [] if claim is None else self.reservations.leave_locked(claim)
            return [*then, *self._due_warnings()]

        if usage is not None and not is_guess:
            self.note_answer(usage, cost)
        if is_dearer and ledger.limits_usage:
            self._warn_of_tier(next(iter(models), ""), tier)
        if (usage is None or is_guess) and ledger.limits_usage:
            self._warn_of_unknown(next(iter(models), ""))
        self.reservations.settle(apply)

    def answer_retrieved(self, answer: object) -> None:
        """For recoveries: charge an answer that was not asked for now, but read again. It is charged at most once."""
        usage, name = usage_of(answer), answer_id_of(answer)
        if usage is None or not name:
            return
        ledger, usd = self._open(), self._prices.cost(model_of(answer), usage)

        def apply() -> Iterable[Callable[[], None]]:
            ledger.charge_retrieved(name, usd=usd, tokens=usage.total)
            return self._due_warnings()

        self.reservations.settle(apply)

    def note_answer(self, usage: Usage, usd: float | None) -> None:
        """For agents: an answer reported its usage, and costs this much; None: nobody knows its price."""

    def reservation(self, quote: Quote | None) -> Reservation:
        """For recoveries: return what to reserve for a call with this quote. Without a quote or price it is what calls usually use."""
        ledger = self._open()
        if quote is None:
            return ledger.usual()
        usd = quote.price(self._prices.cost)
        if usd is None and quote.parts and ledger.limits_money:
            models = (part.model for part in quote.parts if not self._prices.knows(part.model))
            raise _unpriced(next(models, ""))
        if usd is None:
            return Reservation(usd=ledger.usual().usd, tokens=quote.tokens)
        return Reservation(usd=round(usd * NANO), tokens=quote.tokens, firm=True)

    def now(self) -> float:
        """For recoveries: return the reading of its clock."""
        return self._clock()

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
        if self._shared.warned_of_unknown:
            return
        self._shared.warned_of_unknown = True
        logging.getLogger("holdfast").warning(
            "%r: a call%s reported no usage, so its cost is estimated. spend().unknown counts such calls",
            self,
            f" of {model}" if model else "",
        )

    def _warn_of_tier(self, model: str, tier: str) -> None:
        """Warn once per budget that a call was served in a tier whose price nobody knows."""
        if self._shared.warned_of_tier:
            return
        self._shared.warned_of_tier = True
        logging.getLogger("holdfast").warning(
            "%r: %s was served in the tier %r, whose price is unknown, so it counts at the standard price. Give the budget "
            "prices=LIST_PRICES.with_prices({%r: Price(…, tiers={%r: …})})",
            self,
            model,
            tier,
            model,
            tier,
        )

    def _block(self) -> Budget:
        """Return the block of this budget that the caller is in, or else the one that was entered last."""
        if self._ledger is not None:
            return self
        scope = AMBIENT.get()
        while scope is not None:
            if isinstance(scope, Budget) and scope._shared is self._shared:
                return scope
            scope = scope.around
        if self._latest is None:
            raise _never_entered()
        return self._latest

    def _open(self) -> Ledger:
        ledger = self._block()._ledger if self._ledger is None else self._ledger
        assert ledger is not None
        return ledger

    @property
    def _account(self) -> Account:
        if self._shared.account is None:
            raise _never_entered()
        return self._shared.account

    @property
    def _clock(self) -> Monotonic:
        return self._runtimes[0].clock.monotonic

    def _now(self) -> tuple[float, tuple[float, ...]]:
        """Return the reading of this budget's clock, and the readings of the outer budgets' clocks if these differ."""
        return self._clock(), tuple(clock() for clock in self._outer_clocks)

    def _warn(self) -> None:
        with self.reservations.after, self.reservations.lock:
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


def _find_generator(frame: FrameType) -> Callable[[], object] | None:
    """Return a weak reference to the async generator that runs in a frame; None if it cannot be found."""
    # An event loop closes a generator that was dropped some time later. Until then the reader would stay in its block.
    try:
        known = asyncio.get_running_loop()._asyncgens  # type: ignore[attr-defined] # asyncio and uvloop have it
    except (RuntimeError, AttributeError):
        return None
    return next((weakref.ref(each) for each in tuple(known) if each.ag_frame is frame), None)


def _never_entered() -> InvalidError:
    return InvalidError.saying("Budget", "`with budget:` around what it is for", "a budget that was never entered")


def _unpriced(model: str) -> BudgetError:
    named = f"the price of {model}" if model else "which model answers"
    price = f"prices=LIST_PRICES.with_prices({{{model or 'model'!r}: Price(input=…, output=…)}})"
    message = f"This budget limits money, and nobody knows {named}: give it {price}, or estimate_usd=… for each call"
    return BudgetError.because(message, unit="usd", model=model)


def _facts(reached: Reached) -> dict[str, Any]:
    """Return the limit that is spent, as an error's context."""
    return {"unit": reached.unit, "limit": _number(reached.limit), "used": _number(reached.used)}


def _number(amount: float) -> int | float:
    """Return an amount as people read it in a message: 4 attempts and not 4.0, 0.8 seconds and not 0.8000001."""
    return int(amount) if amount == int(amount) else float(f"{amount:g}")
