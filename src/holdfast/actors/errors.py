"""The errors that supervisors raise, and what a child raises that is not needed."""

from __future__ import annotations

from holdfast.faults import HoldfastError

__all__ = ["ChildNotFoundError", "ChildStoppedError", "GaveUpError", "IgnoreStart", "StartError"]


class StartError(HoldfastError):
    """A child could not be started; `__cause__` is what it raised. The children before it were stopped again.

    For example:
        except StartError as error:
            print(error.fault.context["actor"], error.__cause__)
    """

    code = "ACTOR_START_FAILED"


class GaveUpError(HoldfastError):
    """A supervisor gave up: its children failed more often than it may restart them. Raised out of its block.

    All its children have stopped. `__cause__` is the last failure. The code is `ACTOR_MAX_RESTARTS`, or `ACTOR_CRASHED` if a
    child escalated a failure that a restart cannot help.

    For example:
        try:
            async with Supervisor("team", max_restarts=3, window=60) as team:
                await team.start(Coder, "haiku")
                await team.wait()
        except GaveUpError as error:
            print(error.fault.context["actor"], error.__cause__)
    """

    code = "ACTOR_MAX_RESTARTS"


class IgnoreStart(Exception):  # noqa: N818 - it reports no error
    """Raise it if the child is not needed: it stays listed, does not run, and is not tried again.

    For example:
        async def mirror() -> None:
            if not settings.mirrors:
                raise IgnoreStart
    """


class ChildNotFoundError(HoldfastError, LookupError):
    """A supervisor has no child of this id.

    For example:
        except ChildNotFoundError as error:
            print(error.fault.message)
    """

    code = "ACTOR_NOT_FOUND"


class ChildStoppedError(HoldfastError):
    """The supervisor or the child has stopped, so nothing can be requested of it any more.

    For example:
        except ChildStoppedError as error:
            print(error.fault.message)
    """

    code = "ACTOR_STOPPED"
