"""Views: five formats of a fault, in both directions.

`write` returns the document of a fault, `read` returns the fault of a document. If a document is read and written
again, the result is the same document. If a fault is written with `with_fault=True`, `read` returns the whole fault.

    wire        messages, HTTP bodies and hook replies of the bridge
    category    ClassifiedError: category, isRetryable, suggestedDelay …
    classed     class and code
    task        TaskError and TaskResult
    response    Response, with factories for its errors and a decision tree

A document of another shape raises `InvalidError`, which names the place, what was expected and what was received. The views
whose documents leave the process (wire, category, response) mask secrets and cap long texts.

For example:
    body = wire.http_body(fault_of(error), request_id="req_1")
    fault = wire.read(body)
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
