"""Views: the five documents' shapes of a fault, both directions.

Each document says what failed in its own words. `write` tells a fault in them, `read` hears it: a document that is read
and written again is the same document, whatever it held, and a fault that is written `with_fault=True` comes back whole.

    wire        000  messages, HTTP bodies and hook replies of the bridge
    category    001  ClassifiedError
    classed     002  class and code
    task        003  TaskError and TaskResult
    response    004  Response, with its factories and its decision tree

What is no such document raises `InvalidError`, which says where, what was expected and what came. The views that leave
the process (wire, category, response) mask secrets and cap long texts.
"""

from __future__ import annotations

from holdfast.views import category, classed, response, task, wire
from holdfast.views.response import ActorError, Errors, Strategy, decide
from holdfast.views.task import Handler, Status, dispatch

__all__ = [
    "ActorError",
    "Errors",
    "Handler",
    "Status",
    "Strategy",
    "category",
    "classed",
    "decide",
    "dispatch",
    "response",
    "task",
    "wire",
]
