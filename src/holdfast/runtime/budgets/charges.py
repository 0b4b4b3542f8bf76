"""What the attempts of an operation cost: reserved before a call is sent, charged when it ends.

Invariant: a call is charged once, however many recoveries are around it. What was never sent costs nothing.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.policies.budget import costs_nothing
from holdfast.policies.models.usage import Usage, answer_id_of, is_unfinished, model_of, usage_of
from holdfast.runtime.ambient import outwards
from holdfast.runtime.event_loop import present_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault
    from holdfast.policies.budget import Ledger, Reservation
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.budgets.budget import Budget
    from holdfast.runtime.budgets.reservations import CallClaim, Reservations
    from holdfast.runtime.operation.operation import Operation

__all__ = [
    "ChargeOfBody",
    "Charges",
    "SentRequest",
    "charge_answer",
    "charge_attempt",
    "charge_failure",
    "charge_stopped",
    "is_budget_spent",
    "take_back_attempt",
    "take_back_outer_attempt",
]

SILENCE_S = 0.25
"""While an answer comes in parts that follow each other faster, all that is generated is seen."""


class SentRequest:
    """What is known about the request of the present attempt, and about its answer so far."""

    __slots__ = ("heard_after", "is_bounded", "model", "output", "quote", "searches", "unseen", "used")

    def __init__(self, quote: Quote | None, model: str) -> None:
        self.quote = quote
        self.model = model or ("" if quote is None else quote.model)
        self.is_bounded = False
        """The answer has no more than `output` tokens."""
        self.output = 0
        """Tokens of the answer that were seen, or that may have been generated."""
        self.heard_after = 0.0
        """Seconds from the request to the latest part of the answer."""
        self.unseen = 0
        """Tokens that may have been generated in silences."""
        self.searches = 0
        """Web searches that may have been made."""
        self.used: Usage | None = None
        """What the answer has reported so far."""

    def heard(self, tokens: int, seconds: float) -> None:
        """A part of the answer, or its end, came so long after it was sent. A model that is silent may think, which is billed and not shown."""
        silence, self.heard_after = seconds - self.heard_after, seconds
        self.output += tokens
        if self.quote is not None and silence >= SILENCE_S:
            self.unseen += self.quote.until(silence, tokens) - tokens

    def ended_after(self, seconds: float) -> None:
        """The answer was complete so long after it was sent, and reports no usage."""
        self.heard(0, seconds)
        if self.quote is None:
            return
        # An answer that did not come in parts is one silence, however short.
        whole = 0.0 if self.is_bounded else seconds
        self.output = max(self.quote.until(whole, self.output), min(self.quote.output, self.output + self.unseen))

    def left_after(self, seconds: float) -> None:
        """The attempt ended so long after it was sent, without its usage. The provider may have generated more than was seen."""
        if self.quote is not None:
            self.output, self.is_bounded = self.quote.until(seconds, self.output), True
            # A search takes a second at least.
            self.searches = int(min(self.quote.searches, seconds))

    def guess(self) -> Usage | None:
        """Return what the attempt has used as far as it is known; None: nothing is."""
        if self.used is None:
            return None if self.quote is None else self.quote.seen(self.output, self.searches)
        return msgspec.structs.replace(self.used, output=max(self.used.output, self.output))


class Charges:
    """Charges the attempts of one operation to its budget. A call is charged once, however many recoveries are around it.

    If other recoveries make the calls of an attempt, they charge them. The attempt itself is then charged only for
    usage that its answer reports beyond theirs.

    `of_tool`: the call goes to a tool. A tool is no model, so it uses what its answer reports, and otherwise nothing.
    `is_free`: the call asks no model, such as a list of models. It uses nothing. An answer that it reads again is charged once.
    `model`: the model that the call names, if its provider sells it under this name.
    """

    __slots__ = (
        "__weakref__",
        "_again",
        "_answers_inside",
        "_body",
        "_budget",
        "_claim",
        "_is_free",
        "_of_tool",
        "_on_behalf_of",
        "copies",
        "is_sent",
        "model",
        "sent",
    )

    def __init__(self, budget: Budget, *, of_tool: bool = False, is_free: bool = False, model: str = "") -> None:
        self._budget = budget
        self._is_free = is_free
        self._of_tool = of_tool or is_free
        self.model = model
        self.sent: SentRequest | None = None
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
        self._body: ChargeOfBody | None = None
        """What charges the present attempt when its caller has read the answer; None: its end charges it."""

    @classmethod
    def of(cls, budget: Budget, plan: Any, adapter: Any = None) -> Charges:
        """Return the charges of an operation with this plan and adapter."""
        model = plan.target.model if plan.through_client else ""
        is_free = adapter is not None and adapter.is_free
        return cls(budget, of_tool=bool(plan.target.tool), is_free=is_free, model=model)

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

    @property
    def is_free(self) -> bool:
        """Whether the call asks no model."""
        return self._is_free

    def exhausted(self) -> dict[str, Any] | None:
        """Return which limit is spent, as an error's context; None if something is left of every limit."""
        return self._budget.exhausted(free=self._is_free)

    def check(self, model: str) -> None:
        """Raise `BudgetError` if a limit is spent, or money is limited and the cost of a call to `model` cannot be known."""
        self._budget.check(model, free=self._is_free)

    def prepare(self, quote: Quote | None) -> Reservation:
        """Return what to reserve for the next attempt."""
        self.sent = SentRequest(quote, self.model)
        return self._budget.reservation(quote)

    @property
    def copied(self) -> CallClaim | None:
        """The reservation of the present call, which a copy of it needs too; None: there is none."""
        return self._claim

    def charge_lost(self) -> Callable[[CallClaim], None]:
        """Return what charges a call that nobody has any more."""
        return partial(charge_lost, self._budget, self.model)

    def hold(self, claim: CallClaim) -> None:
        """Keep a reservation until the attempt ends."""
        claim.since = self._budget.now()
        self._claim = claim
        self.is_sent = True

    def hold_copy(self, claim: CallClaim) -> None:
        """Keep the reservation of a hedged copy until `end_copy`."""
        claim.since = self._budget.now()
        self.copies.append(claim)

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
        self._answers_inside = self._body = None
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
            self.sent.is_bounded = True
            since = None if self._claim is None else self._claim.since
            self.sent.heard(tokens, self.sent.heard_after if since is None else self._budget.now() - since)
        if (claim := self._claim) is not None:
            claim.parts += 1
            # Its reader cannot wait for it. A stream may be opened by one task and read by another.
            if claim.owner != (reader := present_owner()):
                self.reservations.belongs_to(claim, reader)

    def learned(self, answer: object) -> None:
        """Keep what a stream has reported about its usage so far."""
        if self.sent is not None and (usage := usage_of(answer)) is not None:
            self.sent.used = usage
            self.sent.model = model_of(answer) or self.sent.model

    # --- after the call ---

    def charge_by_body(self) -> ChargeOfBody:
        """Return what charges the present attempt, if it succeeds: its caller reads the answer, which has the usage."""
        self._body = ChargeOfBody(self._budget)
        return self._body

    def end(self, answer: object, outer: Charges | None, *, again: bool) -> None:
        """Charge what an attempt used, as its answer reports it, and pass the answer on to the outer operation."""
        if self._is_free:
            self._budget.answer_retrieved(answer)
            self._over()
            return
        if self._body is not None and self._answers_inside is None:
            claim, self._claim = self._claim, None
            sent = self.sent or SentRequest(None, self.model)
            self._body.begin(sent, claim, [each for each in (outer, self._on_behalf_of) if each], again=again)
            self._over()
            return
        # If a recovery inside returned this answer, the answer was charged there. This attempt only passes it on.
        inside = self._answers_inside
        reports_usage = usage_of(answer) is not None
        if (inside is None and not self._of_tool) or (
            reports_usage and not any(_is_same(answer, other) for other in inside or ())
        ):
            if self.sent is not None and is_unfinished(answer):
                # It goes on in the background, as long as it is allowed to. What it really used is charged when it is read.
                self.sent.left_after(math.inf)
            elif self.sent is not None and self._claim is not None and not reports_usage:
                self.sent.ended_after(self._budget.now() - self._claim.since)
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
            self._charge_unended(next(answers, None), again=again)
        self._over()

    def end_stopped(self, *, again: bool | None = None) -> None:
        """Charge an attempt that was cancelled, or whose stream was left."""
        if self._answers_inside is None and not self._of_tool and self.is_sent:
            self._charge_unended(None, again=self._again if again is None else again)
        self._over()

    def end_copy(self) -> None:
        """Charge a hedged copy of a call. Nobody knows what it used."""
        if not self._of_tool:
            claim = self.copies.pop() if self.copies else None
            sent = self.sent
            if claim is not None:
                sent = SentRequest(claim.quote, self.model)
                sent.left_after(self._budget.now() - claim.since)
            self._budget.attempt_ended(None, again=True, claim=claim, sent=sent)

    def remember(self, answer: object) -> None:
        """Remember an answer that a recovery inside the attempt was charged for."""
        if self._answers_inside is not None:
            self._answers_inside.append(answer)

    def _charge_unended(self, answer: object, *, again: bool) -> None:
        """Charge an attempt that was sent and has no good end: cancelled, late, broken off, left."""
        if answer is None and self.sent is not None and self._claim is not None:
            self.sent.left_after(self._budget.now() - self._claim.since)
        self._charge(answer, again=again)

    def _charge(self, answer: object, *, again: bool) -> None:
        claim, self._claim = self._claim, None
        self._budget.attempt_ended(answer, again=again, claim=claim, sent=self.sent or SentRequest(None, self.model))

    def _over(self) -> None:
        self.is_sent = False
        self.release()


class ChargeOfBody:
    """Charges one answer that its caller reads. It holds the reservation of the call until the reading is over.

    Its methods may be called in any order, by any thread, and by the garbage collector. It charges once.
    """

    __slots__ = ("__weakref__", "_again", "_around", "_budget", "_claim", "_over", "_sent")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._sent: SentRequest | None = None
        """None: the call has not succeeded yet, or is charged."""
        self._claim: CallClaim | None = None
        self._around: list[Charges] = []
        self._again = False
        self._over: tuple[object, int | None, bool] | None = None
        """What `over` was called with before the call had succeeded."""

    def begin(self, sent: SentRequest, claim: CallClaim | None, around: list[Charges], *, again: bool) -> None:
        """The call has succeeded. `around`: those that must not charge the answer again."""
        self._claim, self._around, self._again, self._sent = claim, around, again, sent
        if claim is not None:
            claim.parts += 1
            claim.hold_by(self)
        if self._over is not None:
            self.over(*self._over[:2], complete=self._over[2])

    def end_stopped(self) -> None:
        """Nobody reads it any more."""
        self.over(None, None, complete=False)

    def read(self) -> None:
        """The caller has read a part."""
        claim, sent = self._claim, self._sent
        if claim is not None:
            claim.parts += 1
            if sent is not None:
                sent.heard(0, self._budget.now() - claim.since)
            if claim.owner != (reader := present_owner()):
                self._budget.reservations.belongs_to(claim, reader)

    def over(self, report: object, said: int | None, *, complete: bool) -> None:
        """Charge what was reported; otherwise the tokens that were seen, and what may have been generated beside; None: nobody knows."""
        self._over = (report, said, complete)
        sent, self._sent = self._sent, None
        if sent is None:
            return
        if usage_of(report) is None:
            sent.is_bounded = True
            sent.output = (said or 0) if sent.quote is None else min(said or 0, sent.quote.output)
            if said is None:
                sent.left_after(math.inf)
            elif self._claim is not None:
                (sent.ended_after if complete else sent.left_after)(self._budget.now() - self._claim.since)
        claim, self._claim = self._claim, None
        self._budget.attempt_ended(report, again=self._again, claim=claim, sent=sent)
        for around in self._around:
            around.remember(report)


def charge_lost(budget: Budget, model: str, claim: CallClaim) -> None:
    """Charge a call that holds a reservation and that nobody has any more: an exception has interrupted it anywhere."""
    if claim.since == -math.inf:
        budget.reservations.leave(claim)
        return
    sent = SentRequest(claim.quote, model)
    sent.left_after(budget.now() - claim.since)
    budget.attempt_ended(None, again=False, claim=claim, sent=sent)


def _is_same(answer: object, other: object) -> bool:
    """Return whether two objects are one answer, such as the JSON of a response and what an SDK made of it."""
    return answer is other or bool((name := answer_id_of(answer)) and name == answer_id_of(other))


# --- what operations are charged. Each `op` is an `Operation`; its charges are None where there is no budget around it. ---


def charge_attempt(op: Operation, *, sends: bool = True) -> None:
    """Charge the attempt that begins. `sends`: its call is made at once."""
    if op.charges is not None:
        op.charges.begin(again=_is_recovery(op), sends=sends)


def take_back_attempt(op: Operation) -> None:
    """Take the charge of the present attempt back: an operation inside it makes the calls and is charged for them."""
    if op.charges is not None:
        op.charges.take_back()


def take_back_outer_attempt(op: Operation) -> None:
    """Take back the attempt around an operation that begins: it makes the calls itself, or none at all."""
    if op.charges is not None and not op.attempts and (outer := op.outer) is not None:
        take_back_attempt(outer)


def charge_failure(op: Operation, fault: Fault) -> None:
    """Charge the present attempt, which failed."""
    if op.charges is not None:
        op.charges.end_failed(fault, again=_is_recovery(op))


def charge_stopped(op: Operation) -> None:
    """Charge the present attempt, which was cancelled, left or rejected. What was never sent costs nothing."""
    if op.charges is None:
        return
    if op.attempts > len(op.history):
        op.charges.end_stopped(again=_is_recovery(op))
    else:
        op.charges.release()


def charge_answer(op: Operation, answer: object) -> None:
    """Charge what the present attempt used, as its answer reports it; None: nobody knows."""
    if op.charges is None:
        return
    # A framework wraps the provider's answer in an object of its own, which the price table does not know.
    if op.adapter is not None and answer is not None:
        answer = op.adapter.reported(answer)
    outer = op.outer
    op.charges.end(answer, None if outer is None else outer.charges, again=_is_recovery(op))


def is_budget_spent(op: Operation) -> bool:
    """Whether the budget around an operation allows no further call."""
    return op.charges is not None and op.charges.exhausted() is not None


def _is_recovery(op: Operation) -> bool:
    """Whether the present attempt would not have been made if the first one, here or around, had succeeded."""
    return any(each.attempts > 1 for each in outwards(op))
