"""`Turn`: a message of a user, as an agent that is a function gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

from holdfast.bridge.sessions.publisher import parts
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.bridge.sessions.publisher import Publisher
    from holdfast.sessions import Session

__all__ = ["Turn"]

_STREAMS = UUID("2f0c1f0e-8f43-4c3f-8a57-5f6f6c0b8a61")


class Turn:
    """What a user wants, and how to answer: `holdfast serve app:agent` calls `agent(turn)` for each message.

        async def agent(turn: Turn) -> str:
            if await turn.approve(f"Really {turn.text}?"):
                await turn.say("Working on it.")
                return await turn.session.step(work, turn.text)
            return "Then not."

    What the function returns is said, and so is each text that it yields. If the server dies, the function is called again for the same message:
    what is stored (steps, answers, what was said) is neither done nor said again.
    """

    def __init__(self, text: str, session: Session, number: int, publisher: Publisher) -> None:
        self.text = text
        """What the user wrote."""
        self.session = session
        """The durable session. `turn.session.step(…)` does something once."""
        self.number = number
        """1, 2, 3 … in the session."""
        self._publisher = publisher
        self._said = 0

    async def say(self, text: str) -> None:
        """Show a text to everybody in the session. It is stored when this returns.

        await turn.say("The tests pass.")
        """
        if not isinstance(text, str):
            raise InvalidError.at("turn.say", "a text", text)
        self._said += 1
        # The same id if the function is called again, so that the same words are the same message.
        stream = {"stream_id": str(uuid5(_STREAMS, f"{self.session.id}/{self.number}/{self._said}"))}
        await self._publisher.once(
            f"turn-{self.number}/say-{self._said}",
            ("stream_start", {"turn": self.number} | stream),
            *(("stream_chunk", {"text": part} | stream) for part in parts(text)),
            ("stream_end", {"finish_reason": "stop"} | stream),
        )

    async def approve(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask for permission; return whether it was given: `if await turn.approve("Deploy?"): …`."""
        return await self.session.approve(prompt, expires=expires)

    async def ask(self, prompt: str, *, expires: float | None = None) -> str:
        """Ask for a text: `name = await turn.ask("Which branch?")`. A no raises TOOL_APPROVAL_DENIED."""
        return await self.session.ask(prompt, expires=expires)

    async def select(self, prompt: str, choices: list[str], *, expires: float | None = None) -> str:
        """Ask for one of several choices: `await turn.select("Where?", ["staging", "production"])`."""
        return await self.session.select(prompt, choices, expires=expires)

    async def notify(self, text: str, **data: Any) -> None:
        """Show a notification: `await turn.notify("The build is red")`. A client may show it outside of the conversation."""
        payload = {"notification_id": str(uuid4()), "notification_type": "agent", "title": text, "data": data}
        self._publisher.put("notification", payload)
        await self._publisher.flush()
