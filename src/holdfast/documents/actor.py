"""Document 004, the error model of actors: its names, in Python's spelling.

from holdfast.documents.actor import ClaudeActor, Supervisor, create_message

supervisor = Supervisor(max_restarts=3, window_ms=60_000, strategy="one-for-one")
await supervisor.supervise(lambda: ClaudeActor("claude-1", model="haiku"))
response = await supervisor.send("claude-1", create_message("prompt", "hello"))
"""

from __future__ import annotations

from holdfast.actors.bash import BashActor, StreamEvent, create_bash_actor
from holdfast.actors.errors import StartError as ActorInitializationError
from holdfast.actors.messages import (
    AKKA_SAMPLE,
    ActorError,
    ActorKilledError,
    Errors,
    Message,
    Response,
    SupervisorConfig,
    UnexpectedFailure,
    ValidationError,
    create_message,
)
from holdfast.actors.messages import MessageActor as Actor
from holdfast.actors.messages import MessageSupervisor as Supervisor
from holdfast.actors.messages import Response as EnhancedResponse
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
from holdfast.actors.virtual import VirtualActor, VirtualActors
from holdfast.agents.command_actor import ClaudeActor
from holdfast.events import CircuitState
from holdfast.views.response import ErrorType, Strategy, decide

__all__ = [
    "AKKA_SAMPLE",
    "Actor",
    "ActorError",
    "ActorInitializationError",
    "ActorKilledError",
    "BashActor",
    "CancellableOperation",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "CircuitState",
    "ClaudeActor",
    "EnhancedResponse",
    "ErrorType",
    "Errors",
    "Message",
    "OperationCancelledError",
    "OperationTimeoutError",
    "Response",
    "RetryConfig",
    "Strategy",
    "StreamEvent",
    "Supervisor",
    "SupervisorConfig",
    "UnexpectedFailure",
    "ValidationError",
    "VirtualActor",
    "VirtualActors",
    "create_bash_actor",
    "create_message",
    "decide",
    "with_retry",
    "with_timeout",
]
