"""Document 000's view: the bridge's `connection_error`, `error` and `tool_error` messages, HTTP bodies, hook replies.

Invariant: codes go over the wire verbatim; an old name that came in goes out again as it came (N0-14).

Envelope fields that belong to the sender (message ids, times) are arguments: there is no clock here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import Fault, Partial, Schedule
from holdfast.views._document import code_for, given, millis, refusal, renamed, seconds
from holdfast.views._partial import gather, spread
from holdfast.views._view import View, facts
