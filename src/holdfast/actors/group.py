"""`Group`: several actors under one name. An actor that has ended for good leaves its groups by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.faults import Fault, HoldfastError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from holdfast.actors.ref import Ref
    from holdfast.faults import Outcome

__all__ = ["Group"]

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Group(Generic[A]):
    """A set of actors that get the same message together, or one after the other.

        reviewers: Group[Reviewer] = Group("reviewers")
        for model in ("haiku", "opus"):
            reviewers.join(await team.start(Reviewer, model))
        outcomes = await reviewers.ask_all(Reviewer.review, diff)
        await reviewers.next().ask(Reviewer.review, diff)

    An actor stays a member while it is restarted, and leaves when it has ended for good.
    """

    def __init__(self, name: str) -> None:
        options.name("group.name", name)
        self.name = name
        self._members: dict[Ref[A], Callable[[], None]] = {}
        self._next = 0

    def join(self, ref: Ref[A]) -> None:
        """Add an actor. One that is a member already stays one; one that has ended does not become one."""
        if not hasattr(ref, "_cell"):
            raise InvalidError.at(f"group {self.name}", "the Ref of an actor", ref)
        if ref in self._members or not ref.alive:
            return
        self._members[ref] = ref._cell.watch(lambda _: self._gone(ref))  # noqa: SLF001 - the rooms' own part of a ref

    def leave(self, ref: Ref[A]) -> None:
        """Remove an actor. One that is no member is ignored."""
        unwatch = self._members.pop(ref, None)
        if unwatch is not None:
            unwatch()

    @property
    def members(self) -> tuple[Ref[A], ...]:
        """The actors, in the order in which they joined."""
        return tuple(self._members)

    def next(self) -> Ref[A]:
        """Return the members in turns. Raises `HoldfastError` with ACTOR_NOT_FOUND if the group is empty."""
        members = self.members
        if not members:
            text = f"Group {self.name} has no members"
            raise HoldfastError(Fault.of("ACTOR_NOT_FOUND", text, context={"actor": self.name}))
        self._next += 1
        return members[(self._next - 1) % len(members)]

    def tell(self, method: Callable[Concatenate[A, P], Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Tell every member; return how many took the message. A member whose mailbox is full is left out, and an event reports it."""
        taken = 0
        for member in self.members:
            try:
                member.tell(method, *args, **kwargs)
            except InvalidError:
                raise
            except HoldfastError as error:
                runtime = member._cell.runtime  # noqa: SLF001 - the rooms' own part of a ref
                reason = f"group {self.name} goes on without {member.name}, which did not take the message"
                runtime.bus.emit(SuppressedError.of(error.fault, reason, at=runtime.clock.wall()))
                continue
            taken += 1
        return taken

    async def ask_all(
        self, method: Callable[Concatenate[A, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Outcome[T]]:
        """Ask every member at once; return their outcomes in the order of `members`."""
        outcomes: Any = (member.outcome(method, *args, **kwargs) for member in self.members)
        return list(await asyncio.gather(*outcomes))

    def _gone(self, ref: Ref[A]) -> None:
        self._members.pop(ref, None)

    def __iter__(self) -> Iterator[Ref[A]]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, ref: object) -> bool:
        return ref in self._members

    def __repr__(self) -> str:
        return f"<Group {self.name} of {len(self)}>"
