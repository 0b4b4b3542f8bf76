"""The ids of the messages that the bridge makes: UUIDs, as clients expect them.

Invariant: no other process makes the same id. What is random in an id is drawn once for each process, because drawing it costs a system
call, and a bridge makes an id for each message.
"""

from __future__ import annotations

import itertools
from uuid import uuid4

from holdfast._platform import after_fork

__all__ = ["new_message_id"]


class _Ids:
    def __init__(self) -> None:
        self.renew()
        # A forked child would go on with the ids of its parent.
        after_fork(self.renew)

    def renew(self) -> None:
        # The last group of a UUID has twelve digits.
        self.prefix, self.numbers = str(uuid4())[:-12], itertools.count(1)


_IDS = _Ids()


def new_message_id() -> str:
    """Return an id that no other message has. It can be guessed, so nothing may depend on its being secret.

    >>> len(new_message_id())
    36
    """
    return f"{_IDS.prefix}{next(_IDS.numbers):012x}"
