"""Supervisors and what they supervise: coroutine functions, actors, nested supervisors.

actor     `Actor`: a class whose public async methods can be asked, and its host
cell      what stays of an actor while its instances come and go
child     `Child`: a factory, its arguments, and how to supervise what it makes
control_socket  `control`: lets `holdfast actors tree` look at a running process; tree: what it shows
frames    what an actor's process and its host say to each other
crash     what is reported of a child that crashed
group     `Group`: several actors under one name
health    `Health`: pings that notice an actor that hangs
host      the seam: a `Host` runs one child, incarnation after incarnation
mailbox   what waits for an actor: bounded, with priorities
messages  actors that take messages and return Responses, and their supervisor
pool      `Pool`: partitions by key
process   actors in processes of their own; `worker` is such a process
ref       `Ref`: `ask`, `outcome` and `tell`
resilience  retries, time limits and a circuit for operations that return Responses
task      the host of coroutine functions
supervisor  `Supervisor`: starts children, restarts and stops them; loop: the task that performs it; errors: what it raises;
            supervised_map: a child for each item
virtual   virtual actors: addressed by a key, with their state in a store
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.actors.actor import Actor
    from holdfast.actors.bash import BashActor
    from holdfast.actors.cell import AskTimeoutError
    from holdfast.actors.child import Child
    from holdfast.actors.control_socket import control
    from holdfast.actors.errors import ChildNotFoundError, ChildStoppedError, GaveUpError, IgnoreStart, StartError
    from holdfast.actors.group import Group
    from holdfast.actors.health import Health
    from holdfast.actors.host import Host, Place, Running
    from holdfast.actors.messages import (
        AKKA_SAMPLE,
        ActorError,
        ActorKilledError,
        Errors,
        Message,
        MessageActor,
        MessageSupervisor,
        Response,
        UnexpectedFailure,
        ValidationError,
        create_message,
    )
    from holdfast.actors.pool import Pool
    from holdfast.actors.process import RemoteError
    from holdfast.actors.ref import Ref
    from holdfast.actors.resilience import (
        CancellableOperation,
        CircuitBreaker,
        CircuitBreakerConfig,
        OperationCancelledError,
        OperationTimeoutError,
        RetryConfig,
        with_retry,
        with_timeout,
    )
    from holdfast.actors.supervisor import ChildInfo, Counts, Supervisor
    from holdfast.actors.task import Handle, ready
    from holdfast.actors.virtual import SaveError, VirtualActor, VirtualActors, VirtualRef
    from holdfast.supervision.directive import BY_KIND
    from holdfast.supervision.exits import Error, Exit, Killed, Normal, Shutdown

__all__ = [
    "AKKA_SAMPLE",
    "BY_KIND",
    "Actor",
    "ActorError",
    "ActorKilledError",
    "AskTimeoutError",
    "BashActor",
    "CancellableOperation",
    "Child",
    "ChildInfo",
    "ChildNotFoundError",
    "ChildStoppedError",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "Counts",
    "Error",
    "Errors",
    "Exit",
    "GaveUpError",
    "Group",
    "Handle",
    "Health",
    "Host",
    "IgnoreStart",
    "Killed",
    "Message",
    "MessageActor",
    "MessageSupervisor",
    "Normal",
    "OperationCancelledError",
    "OperationTimeoutError",
    "Place",
    "Pool",
    "Ref",
    "RemoteError",
    "Response",
    "RetryConfig",
    "Running",
    "SaveError",
    "Shutdown",
    "StartError",
    "Supervisor",
    "UnexpectedFailure",
    "ValidationError",
    "VirtualActor",
    "VirtualActors",
    "VirtualRef",
    "control",
    "create_message",
    "ready",
    "with_retry",
    "with_timeout",
]

_HOMES = (
    dict.fromkeys(("Error", "Exit", "Killed", "Normal", "Shutdown"), "holdfast.supervision.exits")
    | dict.fromkeys(("Handle", "ready"), "holdfast.actors.task")
    | dict.fromkeys(
        ("ChildNotFoundError", "ChildStoppedError", "GaveUpError", "IgnoreStart", "StartError"),
        "holdfast.actors.errors",
    )
    | dict.fromkeys(("ChildInfo", "Counts", "Supervisor"), "holdfast.actors.supervisor")
    | dict.fromkeys(("Host", "Place", "Running"), "holdfast.actors.host")
    | dict.fromkeys(("SaveError", "VirtualActor", "VirtualActors", "VirtualRef"), "holdfast.actors.virtual")
    | dict.fromkeys(
        (
            *(
                "AKKA_SAMPLE",
                "ActorError",
                "ActorKilledError",
                "Errors",
                "Message",
                "MessageActor",
                "MessageSupervisor",
            ),
            *("Response", "UnexpectedFailure", "ValidationError", "create_message"),
        ),
        "holdfast.actors.messages",
    )
    | dict.fromkeys(
        (
            *("CancellableOperation", "CircuitBreaker", "CircuitBreakerConfig", "OperationCancelledError"),
            *("OperationTimeoutError", "RetryConfig", "with_retry", "with_timeout"),
        ),
        "holdfast.actors.resilience",
    )
    | {
        "BY_KIND": "holdfast.supervision.directive",
        "BashActor": "holdfast.actors.bash",
        "Actor": "holdfast.actors.actor",
        "AskTimeoutError": "holdfast.actors.cell",
        "Child": "holdfast.actors.child",
        "Group": "holdfast.actors.group",
        "Health": "holdfast.actors.health",
        "Pool": "holdfast.actors.pool",
        "Ref": "holdfast.actors.ref",
        "RemoteError": "holdfast.actors.process",
        "control": "holdfast.actors.control_socket",
    }
)

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
