"""`stop_on_signals`: a program that gets a signal to stop leaves its agents in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Let SIGTERM (or the given signals) cancel the block, as Ctrl-C does; then the program exits with 128 plus the signal's number.

        async def main() -> None:
            with stop_on_signals():
                async with Session.open("fix-42") as session:
                    await agent.run("fix the tests", session=session)

    By default SIGTERM ends a Python program at once: the session is left without a word, and programs that tools have started go on.
    With this the turn stays in flight, the lease is released, and those programs are ended. Outside of the main thread it does nothing.
    A signal that the program ignores stays ignored.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    came: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        # A second signal must not cancel the work that the first one has made necessary.
        if not came:
            task.cancel()
        came.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    wanted = (numbers or (signal.SIGTERM,)) if is_main else ()
    taken = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if not came or task.uncancel() > 0:
            raise
        raise SystemExit(128 + came[0]) from None
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
