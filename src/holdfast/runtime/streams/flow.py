"""The stream machine: it decides what to do about each thing that happens to a stream. It does no I/O.

A `Flow` holds items back until the first content, or hands on the opening of a stream once, remembers what was delivered, knows whether the stream is complete, and
decides what a failure does: begin again before the consumer has seen anything, continue, restart, use another source,
or raise. What differs between the streams of SDKs and frameworks is a `StreamDialect`, which is data. A driver (`stream.py`)
reads the source and does this:

    flow.begin()                    when the stream is entered
    flow.source_opened()            before the first item of each source
    flow.received(item, source)     False: the item is held back, read on
    flow.source_ended(source)       when the source has no more items
    flow.next_item()                while `ready` has items: the next one to hand on
    delay = flow.failed(error)      after closing the source. None: raise the error; else wait, then call `retry`
    flow.abandon(error)             when the consumer leaves

Invariant: an operation is settled exactly once, however its stream ends. A tool call is never made of two answers.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token, copy_context
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias

import msgspec

from holdfast.events import StreamResumed
from holdfast.faults import AbortedError, DeadlineError, Fault, HoldfastError, Partial, StreamCutError
from holdfast.policies.decide import AfterFirst, Ask, Reason, Skip, Take, can_fall_back, decide_fallback, may_resume
from holdfast.policies.fallback import When
from holdfast.policies.models.quote import text_tokens
from holdfast.policies.models.tool_calls import CallTracker
from holdfast.runtime.budgets.charges import is_budget_spent
from holdfast.runtime.callables import used_up
from holdfast.runtime.fallbacks.fallback import meets_condition
from holdfast.runtime.fault_of import add_note, forget_account
from holdfast.runtime.operation import errors, reports
from holdfast.runtime.operation.facts import is_fallback_time_over

if TYPE_CHECKING:
    from holdfast.runtime.callables import Request
    from holdfast.runtime.limits import Wheels
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan

__all__ = [
    "ALIVE",
    "AfterFirst",
    "AttemptContext",
    "Delivered",
    "Ending",
    "Flow",
    "Opening",
    "OtherSource",
    "StreamDeadlineError",
    "StreamDialect",
    "Used",
    "stalled",
]

ALIVE: Any = object()
"""A source yields this when something arrived that is not an item yet. The idle limit begins anew; no consumer sees it."""

_MAX_ITEMS = 100_000
_MAX_TEXT = 4 * 1024 * 1024
_MAX_BYTES = 16 * 1024 * 1024
"""The most memory, roughly, for delivered items that are not text. It holds some thousands of an SDK's events."""
_MAX_REREAD = 16 * 1024
"""The most items that are kept as texts: making them again takes some 15 µs each."""
_PACKED_TOGETHER = 64
_MAX_PARTS = 64
"""How many parts of an item are measured."""

_EARLY_S = 1e-3
"""A timer or a socket may be early by a rounding error."""

_OTHERWISE = "The stream broke off before its first content, and the next answer begins otherwise"

_NOTHING = object()


class StreamDeadlineError(StreamCutError, DeadlineError):  # type: ignore[misc] # each base names its own usual code
    """The deadline of a stream passed after its first item. It is a `DeadlineError` with `partial`, the items that arrived.

    For example:
        except DeadlineError as error:
            print(error.fault.partial)
    """


# --- what differs between streams ---


class Used(msgspec.Struct, frozen=True):
    """The model that answered and the tokens it used, as a stream reports them."""

    model: str | None
    usage: Mapping[str, Any]

    def then(self, later: Used) -> Used:
        """Return both reports as one. A later count replaces an earlier one: streams report totals so far."""
        counts = {name: count for name, count in later.usage.items() if count is not None}
        return Used(later.model or self.model, {**self.usage, **counts})


def _no(item: Any) -> bool:  # noqa: ARG001 - the default of a dialect knows nothing about its items
    return False


def _said(item: Any) -> int:
    return text_tokens(item) if isinstance(item, str) else 1


class Opening(msgspec.Struct, frozen=True):
    """What an item before the first content announces. Another answer that announces the same can go on in its place."""

    name: str
    binds: bool = False
    """Content will refer to it, such as a block or a tool call. Another answer must announce it too."""


class StreamDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the items of one kind of stream. By default every item is content, and every end complete."""

    opens: Callable[[Any], bool] = _no
    """Whether an item comes before any content. Such items are held back, so an early failure stays invisible."""
    announces: Callable[[Any], Opening | None] | None = None
    """What an item that `opens` announces. A stream that shows its opening hands it on at once, and leaves out the same item of
    the next attempt. None: no other answer can take its place, so it counts as content."""
    fragment: Callable[[Any], bool] = _no
    """Whether an item is a part of a tool call. After one is delivered, a failure is always raised."""
    ends: Callable[[Any], bool | None] | None = None
    """Whether an item ends a complete stream; None for items that say nothing about the end.

    If this is set, a stream that ends without such an item was cut, unless it was `marked`.
    """
    marked: Callable[[Any], bool] = _no
    """Whether a source that has ended received the protocol's end marker, which is not an item."""
    failure: Callable[[Any, Any], Exception | None] | None = None
    """The exception for an item that reports a failure; takes the item and its source."""
    raises_failures: bool = False
    """Raise such a failure also after the first content. Otherwise the item is handed on, and the failure counts at the end."""
    used: Callable[[Any], Used | None] | None = None
    """What an item reports about the model and the tokens used so far. Without it the source itself is looked at."""
    said: Callable[[Any], int] = _said
    """About how many tokens of the answer an item holds. A budget counts them in case the usage is never reported."""
    hides: Callable[[Any], bool] | None = None
    """Whether the consumer must not see an item, because the consumer did not request it."""
    wire: Callable[[Any], str | None] | None = None
    """Takes a source, and returns the text that its latest item was read from; None if the item itself must be kept.

    An SDK's event takes ten times the memory of its text. If this is set, `reread` makes the items again where they are needed.
    """
    reread: Callable[[Any, str], Any] | None = None
    """Takes a source and such a text, and returns the item."""
    recognise: Callable[[Any], StreamDialect | None] | None = None
    """Takes the first item and returns a dialect that knows more; None if there is none."""
    timeout_is_silence: bool = False
    """A timeout in the middle of a stream is the HTTP client's own: the server sent nothing for too long."""


_ANY_ITEMS = StreamDialect()


class Ending:
    """Whether a stream is complete."""

    __slots__ = ("_any", "_complete", "_ends")

    def __init__(self, dialect: StreamDialect) -> None:
        self._ends = dialect.ends
        self._any = False
        self._complete: bool | None = None
        """None as long as no item says anything about the end."""

    @property
    def complete(self) -> bool:
        """Whether the item that ends every complete stream has come."""
        return self._complete is True

    def note(self, item: Any) -> None:
        """Look at the next item."""
        self._any = True
        if self._ends is not None and (ends := self._ends(item)) is not None:
            self._complete = self._complete or ends

    def check(self, *, marked: bool = False) -> None:
        """Raise if a stream that has no more items was cut. With the protocol's end marker it was not, whatever its items say."""
        if not marked and (self._complete is False or (self._ends is not None and not self._any)):
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def stalled(name: str, seconds: float | None) -> HoldfastError:
    """Return the error for a stream that sent nothing for `seconds`; None: for longer than the HTTP client's limit."""
    silence = "too long" if seconds is None else f"{seconds:g} s"
    context = {} if seconds is None else {"idle_s": seconds}
    return HoldfastError(Fault.of("PROVIDER_STREAM_STALLED", f"{name} sent nothing for {silence}", context=context))


# --- what was delivered ---


class _Packed(NamedTuple):
    """The texts of some items, compressed."""

    data: bytes

    @classmethod
    def of(cls, texts: list[str]) -> _Packed:
        return cls(zlib.compress(msgspec.msgpack.encode(texts), 1))

    def texts(self) -> list[str]:
        return msgspec.msgpack.decode(zlib.decompress(self.data), type=list[str])


class Delivered:
    """The items that the consumer has. Memory is bounded: beyond a limit items are counted only, and `partial` says so."""

    __slots__ = ("_bytes", "_is_full", "_items", "_tail", "_text", "count", "reread")

    def __init__(self) -> None:
        self.count = 0
        self._items: list[Any] = []
        self._tail: list[str] = []
        """Texts that come after `_items` and are not packed yet."""
        self._text = self._bytes = 0
        self._is_full = False
        self.reread: Callable[[str], Any] | None = None
        """Makes an item of its text."""

    def add(self, item: Any) -> None:
        """Remember an item that is handed to the consumer."""
        self.count += 1
        if self._is_full:
            return
        if self._tail:
            self._pack()
        if isinstance(item, str):
            self._text += len(item)
        else:
            self._bytes += _size_of(item)
        # An item is measured before it is kept: a single one may be larger than everything else. After the first item that
        # does not fit none is kept, so the kept ones are the beginning of the stream, without a gap.
        if self._text > _MAX_TEXT or self._bytes > _MAX_BYTES or len(self._items) >= _MAX_ITEMS:
            self._is_full = True
        else:
            self._items.append(item)

    def add_text(self, text: str) -> None:
        """Remember the text of an item that is handed to the consumer."""
        self.count += 1
        if self._is_full:
            return
        self._bytes += len(text)
        if self._bytes > _MAX_BYTES or self.count > _MAX_REREAD:
            self._is_full = True
            return
        self._tail.append(text)
        if len(self._tail) == _PACKED_TOGETHER:
            self._pack()

    def only_text(self) -> str | None:
        """Return the text of the only item; None if the item itself is kept."""
        return self._tail[0] if self._tail else None

    def _pack(self) -> None:
        self._items.append(_Packed.of(self._tail))
        self._tail = []

    def _unpacked(self) -> Iterable[Any]:
        reread: Any = self.reread
        for item in self._items:
            if type(item) is _Packed:
                yield from map(reread, item.texts())
            else:
                yield item
        yield from map(reread, self._tail)

    def partial(self) -> Partial:
        """Return the items: text joined, other items as a list."""
        items = self._items if self.reread is None else list(self._unpacked())
        whole: Any = "".join(items) if items and all(isinstance(item, str) for item in items) else list(items)
        return Partial(payload=whole, complete=self.count, truncated=len(items) < self.count)

    def on(self, fault: Fault) -> Fault:
        """Return the fault with the delivered items on it. An unknown failure is at least known to be a cut stream."""
        if fault.code == "SYS_UNKNOWN":
            cut = Fault.of("PROVIDER_STREAM_CUT", fault.message, cause=fault.cause, context=fault.context)
            fault = cut.with_attempts(fault.attempts)
        return msgspec.structs.replace(fault, partial=self.partial())


_SMALL = frozenset({int, float, bool, type(None)})


def _size_of(item: Any) -> int:
    """Return roughly how many bytes of memory an item takes, with what it holds."""
    size = looked_at = 0
    parts = [item]
    # This runs once per item, so the common kinds are recognised by their exact type. A long item is measured by some of its
    # parts: a list counts whole in any case, and parts that nobody looked at are small or numerous.
    while parts and looked_at < _MAX_PARTS:
        part = parts.pop()
        kind = type(part)
        if kind in _SMALL:
            continue
        looked_at += 1
        size += getsizeof(part, 64)
        if kind is dict:
            parts += islice(part.values(), _MAX_PARTS)
        elif kind is list or kind is tuple:
            parts += islice(part, _MAX_PARTS)
        elif kind is not str and kind is not bytes:
            parts += _parts_of(part)
    return size


def _parts_of(part: Any) -> Iterable[Any]:
    if isinstance(part, dict):
        return islice(part.values(), _MAX_PARTS)
    if isinstance(part, (list, tuple, set, frozenset, deque)):
        return islice(part, _MAX_PARTS)
    inside = getattr(part, "__dict__", None)
    if inside is not None:
        return tuple(inside.values())
    slots = getattr(type(part), "__slots__", ())
    return [getattr(part, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]


# --- the machine ---


class StreamPlan(Protocol):
    """What a flow and its driver need to know of the stream: a `StreamOf`."""

    plan: Plan
    fn: Callable[..., Any]
    resume: Callable[..., Any] | None
    dialect: StreamDialect
    after_first: AfterFirst
    ways: tuple[OtherSource, ...]
    first: Wheels | None
    idle: Wheels | None
    each: bool
    own: Wheels
    total: float | None

    def begin(self) -> Operation:
        """Return the operation of a stream that begins now."""
        ...


class OtherSource(msgspec.Struct, frozen=True):
    """Another source of the same items, for when the first has failed for good."""

    name: str
    of: Any
    """A `StreamOf`."""
    when: When | None


def _decide_way(op: Operation, way: OtherSource, latest: Fault, primary: Fault, *, used_up: bool) -> Take | Ask | Skip:
    return decide_fallback(
        condition_met=meets_condition(op, way.name, way.when, latest, primary),
        circuit_open=way.of.plan.fresh().rejects(),
        budget_spent=is_budget_spent(op),
        arguments_used_up=used_up,
        time_over=is_fallback_time_over(op),
    )


class _UntriedWays:
    """The sources of a stream that were not tried yet. It does not refer to the flow, whose operation refers to it."""

    has_last_resort = has_lesser_answer = False

    def __init__(self, ways: tuple[OtherSource, ...], primary: Fault | None = None) -> None:
        self._ways = ways
        self._primary = primary

    def could_answer(self, op: Operation, fault: Fault) -> bool:
        primary = self._primary or fault
        return any(isinstance(_decide_way(op, way, fault, primary, used_up=False), Take) for way in self._ways)


class Flow:
    """The state of one stream."""

    op: Operation

    def __init__(self, of: StreamPlan) -> None:
        self.of = of
        self.ready: deque[Any] = deque()
        """Items that may be handed on."""
        self.delivered = Delivered()
        self.over = False
        """The operation is settled, and no source is read any more."""
        self.fresh = True
        """Nothing has come from the present source that the consumer may see."""
        self.restarts = 0
        self._held: list[Any] | None = None
        """Items before the first content of the present source; None after it."""
        self.shows_opening = False
        """Items before the first content are handed on at once, if the dialect can tell what they announce."""
        self.has_content = False
        """The consumer has content: from now on a failure is a cut."""
        self._shown: list[Opening] = []
        """What the consumer was told before the first content, by all attempts."""
        self._missing: list[Opening] = []
        """Those of them that the present source has not announced yet."""
        self._looks = False
        """Whether the dialect looks at items at all. If not, no time is spent on them: streams have many items."""
        self._dialect = of.dialect
        self._texts: deque[str | None] | None = None
        """The text of each item that is held or ready; None: the items themselves are kept."""
        self._ending = Ending(of.dialect)
        self._used: Used | None = None
        self._reported: Exception | None = None
        """A failure that an item reported. The consumer has seen that item."""
        self._mode: AfterFirst = "raise"
        self._call: CallTracker | None = None
        self._ways = of.ways
        self._primary: Exception | None = None
        """The failure of the first source, while others are used."""
        self._resumes = False
        self._request: Request | None = None
        """The arguments that the next source would be made with."""
        self._began = 0.0
        self.handed_out = False
        """An SDK's own object reads the stream now."""
        self._reads_usage = False
        self._counts = False
        """A budget counts what the answer says."""
        self._settled = False
        """The operation was settled at the last item, before the source ended."""

    def begin(self) -> None:
        """Begin the operation."""
        self._use(self.of)
        if self._ways:
            self.op.expect_fallbacks(_UntriedWays(self._ways))

    def _use(self, of: StreamPlan) -> None:
        """Begin with the first source, or with a fallback. Each has its own limits and its own way to go on."""
        self.of, self.op = of, of.begin()
        self._began = self.op.plan.monotonic()
        self._mode = of.after_first
        self._call = CallTracker() if of.after_first == "continue" else None

    # --- items ---

    def source_opened(self) -> None:
        """Forget what is known about the previous source."""
        self.fresh = True
        is_off = self.op.plan.off
        # While recovery is off, every item passes through untouched: none is held back, and no end is a cut.
        self._held = None if is_off else []
        self._missing = self._shown.copy()
        self._texts = None if is_off or self.of.dialect.wire is None else deque()
        # Each source is an answer of its own: the end and the usage of an earlier one say nothing about it.
        self._speak(_ANY_ITEMS if is_off else self.of.dialect)
        self._used = self._reported = None
        # Reading the usage is not free. It matters to a budget, and where the other side limits tokens.
        self._reads_usage = self.op.budget is not None or self.op.plan.limited_state.counts_tokens
        self._counts = self.op.charges is not None and self.op.charges.reserves

    def _speak(self, dialect: StreamDialect) -> None:
        self._dialect = dialect
        self._looks = any(found is not None for found in (dialect.failure, dialect.ends, dialect.used))
        self._ending = Ending(dialect)

    def received(self, item: Any, source: Any) -> bool:
        """Handle an item; return False if it is held back and the next one is needed now. Raise a failure it reports."""
        if item is ALIVE:
            self._count(1)
            self.fresh = False
            return True
        if self._held is not None and not self._held and self._dialect.recognise is not None:
            self._speak(self._dialect.recognise(item) or self._dialect)
        if self._looks:
            self._look_at(item, source)
        if self._counts:
            self._count(self._dialect.said(item))
        if self._dialect.hides is not None and self._dialect.hides(item):
            return False
        if self._texts is not None:
            self._note_text(source)
        if self._held is None:
            self.ready.append(item)
            return True
        if self.shows_opening and self._dialect.announces is not None:
            return self._show(item, self._dialect.announces(item) if self._dialect.opens(item) else None)
        self._held.append(item)
        # Items are held until the first content and no longer: a consumer must see content the moment it arrives.
        if self._dialect.opens(item):
            return False
        self._release()
        return True

    def _note_text(self, source: Any) -> None:
        dialect = self._dialect
        assert self._texts is not None
        assert dialect.wire is not None
        self._texts.append(dialect.wire(source))
        if self.delivered.reread is None and dialect.reread is not None:
            self.delivered.reread = partial(dialect.reread, source)

    def _show(self, item: Any, opening: Opening | None) -> bool:
        """Hand on an item before the first content, or the first content; return False for what the consumer has already."""
        if opening in self._missing:
            self._missing.remove(opening)
            if self._texts is not None:
                self._texts.pop()
            return False
        if (opening is None or opening.binds) and any(missing.binds for missing in self._missing):
            # The consumer waits for the content of a block that this answer does not have.
            self.has_content = True
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", _OTHERWISE))
        if opening is None:
            self._release()
        else:
            self._shown.append(opening)
        self.ready.append(item)
        return True

    def _count(self, tokens: int) -> None:
        if self._counts and self.op.charges is not None:
            self.op.charges.saw(tokens)

    def _look_at(self, item: Any, source: Any) -> None:
        dialect = self._dialect
        if dialect.failure is not None and (failure := dialect.failure(item, source)) is not None:
            if self._held is not None or dialect.raises_failures:
                raise failure
            # The SDK's contract is that its caller sees this item. The circuit still counts the failure, at the end.
            self._reported = self._reported or failure
        self._ending.note(item)
        if dialect.used is not None and self._reads_usage and (used := dialect.used(item)) is not None:
            self._used = used if self._used is None else self._used.then(used)
            if self._counts and self.op.charges is not None:
                self.op.charges.learned(self._used)
        if self.handed_out and self._ending.complete:
            self.settle_complete()

    @property
    def is_complete(self) -> bool:
        """Whether the item that ends every complete stream has come."""
        return self._ending.complete

    def settle_complete(self) -> None:
        """Settle a stream whose last item has come, if its consumer may stop there without closing it.

        Many consumers do, and some libraries keep such a stream alive until the garbage collector finds it. A budget still
        waits for the end of the source, because the usage may come after the last item.
        """
        is_good = self._ending.complete and self._reported is None
        if is_good and not self._settled and not self.over and self.op.budget is None:
            self._settled = True
            self.op.succeeded(self._used)

    def _release(self) -> None:
        self.ready.extend(self._held or ())
        self._held = None
        self.fresh = False

    def source_ended(self, source: Any) -> None:
        """Settle a stream whose source has ended; raise if the item that ends every complete stream is missing."""
        if self.over:
            return
        self._ending.check(marked=self._dialect.marked(source))
        self._release()
        self.over = True
        if self._settled:
            return
        # Settled before the last item is delivered, because the source has done its part.
        if self._reported is None:
            self.op.succeeded(source if self._used is None else self._used)
        else:
            self.op.cut_off(self._reported)

    def next_item(self) -> Any:
        """Return the next item that is ready, and count it as delivered."""
        item = self.ready.popleft()
        text = self._texts.popleft() if self._texts else None
        if text is None:
            self.delivered.add(item)
        else:
            self.delivered.add_text(text)
        if self._held is None:
            self.has_content = True
        if self._mode != "raise":
            if self._call is not None:
                self._call.follow(item)
            if self._dialect.fragment(item):
                # Another answer phrases its tool calls differently, so parts of two answers must never be joined.
                self._mode = "raise"
        return item

    def take_back(self, item: Any) -> None:
        """Put the first item back, so that it is delivered next. It was read only to know that there is one."""
        self.ready.appendleft(item)
        if self._texts is not None:
            # Only one item was delivered, so its text is all that is known.
            self._texts.appendleft(self.delivered.only_text())
        self._forget_delivered()

    def _forget_delivered(self) -> None:
        reread, self.delivered = self.delivered.reread, Delivered()
        self.delivered.reread = reread
        self.has_content = False
        self._shown.clear()

    # --- limits ---

    def ends(self) -> float | None:
        """Return when the stream must end even if items arrive: at `total`, or at a deadline that somebody named."""
        op, total = self.op, self.of.total
        if op.around is None and total is None and op.plan.deadline is None:
            return None
        ends, named = None if total is None else self._began + total, errors.named_end(op)
        return named if ends is None or (named is not None and named < ends) else ends

    def is_overdue(self) -> bool:
        """Whether it must have ended by now, and is not complete. The consumer's own time counts, too."""
        ends = self.ends()
        if ends is None or self.over or self._ending.complete or self.op.plan.off:
            return False
        return self.op.plan.monotonic() >= ends - _EARLY_S

    def drop_ready(self) -> None:
        """Forget the items that were not handed on: the time to do so is over."""
        self.ready.clear()
        if self._texts is not None:
            self._texts.clear()

    def late(self) -> HoldfastError:
        """Return the error of the limit that expired. Each limit has its own error (R77)."""
        op, ends, now = self.op, self.ends(), self.op.plan.monotonic()
        if ends is not None and now >= ends - _EARLY_S:
            return errors.deadline_passed(op, ends - self._began)
        if self.fresh:
            return errors.timed_out(op)
        idle = self.of.idle
        return stalled(op.plan.name or "The stream", 0.0 if idle is None else idle.seconds)

    # --- leaving and failing ---

    def abandon(self, error: BaseException | None = None) -> None:
        """The consumer left before the end: nothing is known about the source, unless its answer is complete (R78, R79)."""
        if self.over:
            return
        self.over = True
        if self._settled:
            return
        if self._ending.complete and self._reported is None and not self._held and error is None:
            self.op.succeeded(self._used)
        else:
            self.op.abandoned(error)

    def abandon_wait(self) -> None:
        """The consumer left while the stream waited for its next source."""
        self.over = False
        self.abandon()

    def failed(self, error: BaseException, request: Request | None = None) -> float | None:
        """Settle a failure. Return the seconds to wait before the next source, or None to let `error` through.

        `request` holds the arguments that the next source would be made with.
        If another error must surface, it is raised here. After the wait you must call `retry`.
        """
        op = self.op
        self._request = request
        # If the wait raises, the stream is over: only `retry` takes this back.
        self.over = True
        if self._settled:
            # The answer was complete, so it counts as good. The consumer still gets the failure.
            return self._raise_cut(error) if isinstance(error, Exception) else None
        if self.has_content and isinstance(error, Exception) and op.passes(error):
            # The source has answered. An exception that steers the framework is no failure of the source.
            op.succeeded(self._used)
            return None
        is_failure = isinstance(error, Exception) and not op.plan.off and not op.passes(error)
        is_cut = is_failure and self.has_content
        if is_cut:
            error = self._settle_cut(error)
            op.reopen_window()
        if op.observation is not None:
            op.observation.is_cut = self.has_content and self._mode == "raise"
        delay, surfacing = self._ask_operation(error, request)
        if delay is None:
            try:
                if is_cut:
                    self._raise_cut(surfacing or error)
                # A person who stopped the stream wants no other source either.
                can_go_on = is_failure and op.has_fallbacks and not isinstance(error, AbortedError)
                delay = self._fall_back(surfacing or error) if can_go_on else None
                if delay is None and surfacing is not None:
                    errors.raise_earlier(surfacing)
                return delay
            finally:
                # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
                del surfacing
        self._resumes = is_cut
        if is_cut or not self._ways:
            # A consumer that has items never gets those of another source, and the last source has none after it.
            op.rule_out_fallback()
        return delay

    def _ask_operation(self, error: BaseException, request: Request | None) -> tuple[float | None, Exception | None]:
        """Return the seconds to wait, or None, and the exception that surfaces in place of `error`, if another one does."""
        try:
            return self.op.failed(error, None, request), None
        except Exception as own:  # noqa: BLE001 - whatever it is, another source may answer it
            return None, own

    def falls_back(self, error: Exception) -> bool:
        """The wait for the next source raised an error. Return whether a person commanded the fallbacks and there is one.

        If so, call `retry`; else let the error through. Where another error surfaces, it is raised from here.
        """
        return self.op.reason is Reason.COMMANDED and self._fall_back(error) is not None

    def retry(self) -> None:
        """Go on after the wait, with another source."""
        self.over = False
        if not self._resumes:
            return
        self._resumes = False
        self.restarts += 1
        op, runtime = self.op, self.op.plan.runtime
        how: Literal["continue", "restart"] = "continue" if self._mode == "continue" else "restart"
        if runtime.bus.wants(StreamResumed):
            at, items = runtime.clock.wall(), self.delivered.count
            runtime.bus.emit(StreamResumed(at=at, run=op.run, operation=op.plan.name, how=how, items=items))
        if how == "restart":
            # After a restart the consumer discards the items it got before, so they no longer count as delivered.
            self._forget_delivered()

    def _settle_cut(self, error: BaseException) -> BaseException:
        """Raise `StreamCutError` if the stream may not resume; else return the failure to decide about."""
        if self._dialect.timeout_is_silence and self.op.plan.runtime.fault_of(error).code == "PROVIDER_TIMEOUT":
            # The HTTP client ended it by its own limit.
            silence = stalled(self.op.plan.name, None)
            silence.__cause__ = error
            error = silence
        if not may_resume(self._mode, inside_tool_call=self._call is not None and self._call.inside):
            assert isinstance(error, Exception)
            self.op.cut_off(error)
            self._raise_cut(error)
        # A nested stream broke and was not allowed to resume. This stream may resume, so the cause of the break counts.
        while isinstance(error, StreamCutError) and error.__cause__ is not None:
            error = error.__cause__
            forget_account(error)
        return error

    def _raise_cut(self, error: BaseException) -> NoReturn:
        """Raise `StreamCutError` with the delivered items; a defect in the source's own code is raised as it is."""
        fault = self.op.plan.runtime.fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        kind = StreamDeadlineError if fault.code == DeadlineError.code else StreamCutError
        raise kind(self.delivered.on(fault)) from error

    def _fall_back(self, error: BaseException) -> float | None:
        """Take the next source whose condition is met (R75); if there is none, let the first source's error surface."""
        latest = self.op.plan.runtime.fault_of(error)
        primary = latest if self._primary is None else self.op.plan.runtime.fault_of(self._primary)
        while self._ways and can_fall_back(latest, effect=self.op.plan.effect):
            way, self._ways = self._ways[0], self._ways[1:]
            is_used_up = self._request is not None and used_up(*self._request)
            if isinstance(_decide_way(self.op, way, latest, primary, used_up=is_used_up), Take):
                assert isinstance(error, Exception)
                self._primary = self._primary or error
                reports.fell_back(self.op, "primary", way.name, latest)
                before = self.op
                self._use(way.of)
                self.op.take_over(before, way.name, _UntriedWays(self._ways, primary))
                return 0.0
        reports.failed(self.op, primary)
        surfacing, self._primary = self._primary, None
        if surfacing is None or surfacing is error:
            return None
        add_note(surfacing, f"holdfast: fallback {self.op.via}: {latest.code} {latest.message}")
        try:
            if latest.code == DeadlineError.code and primary.code != latest.code and errors.is_cut(self.op):
                # The deadline of the request passed in a fallback: that is what the caller must know.
                raise error from surfacing
            raise surfacing
        finally:
            # A frame in an exception's traceback must not refer to the exception: the cycle would keep both alive.
            del surfacing


# --- the context of an attempt ---

Tokens: TypeAlias = "tuple[Token[Any], ...]"


class AttemptContext:
    """The context variables that readers of events set when an attempt began, such as a trace's span.

    The consumer runs between two steps of a stream's attempt. So `admit` sets the variables in a copy of the context.
    They are in force during the attempt's own steps only, and the consumer's context does not change.
    """

    __slots__ = ("_changes",)

    def __init__(self, op: Operation) -> None:
        context = copy_context()
        context.run(op.admit)
        self._changes: tuple[tuple[ContextVar[Any], Any], ...] = tuple(
            (variable, value) for variable, value in context.items() if variable.get(_NOTHING) is not value
        )

    def enter(self) -> Tokens:
        """Put the variables in force for one step. After the step you must call `leave` with the tokens."""
        return tuple(variable.set(value) for variable, value in self._changes)

    @staticmethod
    def leave(tokens: Tokens) -> None:
        for token in reversed(tokens):
            # The garbage collector closes a coroutine in another context, where there is nothing to reset.
            with suppress(ValueError):
                token.var.reset(token)
