"""What the views' tests draw from: JSON values, faults of every code, and legal documents of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast.faults import CODES, REDACTOR, Attempt, Category, Cause, Fault, ItemError, Partial, Scope
from holdfast.views import category, classed, response, task, wire

# Secret-free: what looks like a secret, or is named like one, is masked on its way out (test_views_document.py).
words = st.text(max_size=12).filter(lambda word: REDACTOR.value({word: word}) == {word: word})
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)

# The names views give a meaning to, so that tests meet them holding anything.
fact_names = words | st.sampled_from([
    "said", "tool", "tool_call_id", "violations", "errors", "field", "phase", "currentPhase", "used", "limit",
    "expected", "expectedType", "path", "invalid_model", "location", "stdout", "stderr", "payload", "truncated",
    "partialOutput", "partialResults", "originalOutput", "content", "subtask_error", "supported", "received",
    "receivedType", "restart_count", "holdfast",
])  # fmt: skip
objects = st.dictionaries(fact_names, json_values, max_size=4)
extras = st.dictionaries(words | st.sampled_from(["timestamp", "holdfast", "said"]), json_values, max_size=2)

code_names = (
    st.sampled_from(CODES)
    | words
    | st.sampled_from([
        "SESSION_NOT_FOUND", "RATE_LIMIT_EXCEEDED", "TOOL_ERROR", "session_not_found", "TOOL_FROM_THE_FUTURE",
        "CONN_FROM_THE_FUTURE", "GIT_ERROR", "TIMEOUT", "MAX_RESTARTS_EXCEEDED",
    ])
)  # fmt: skip

causes = st.recursive(
    st.builds(Cause, type=words, message=words),
    lambda inner: st.builds(Cause, type=words, message=words, chain=st.lists(inner, max_size=2).map(tuple)),
    max_leaves=3,
)
item_errors = st.builds(ItemError, item=json_values, code=code_names, message=words, retryable=st.booleans())
partials = st.builds(
    Partial,
    payload=json_values | st.fixed_dictionaries({}, optional={"stdout": words, "stderr": words}),
    errors=st.lists(item_errors, max_size=2).map(tuple),
    complete=st.none() | st.integers(0, 9),
    truncated=st.booleans(),
)
faults = st.builds(
    Fault,
    code=st.sampled_from(CODES),
    message=words,
    retryable=st.booleans(),
    scope=st.sampled_from(Scope),
    retry_after=st.none() | st.floats(0, 1e6),
    maybe_executed=st.booleans(),
    rule=words,
    context=objects,
    partial=st.none() | partials,
    cause=st.none() | causes,
    attempts=st.lists(st.builds(Attempt, number=st.integers(1, 9), cause=st.none() | causes), max_size=2).map(tuple),
)


def documents(required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Documents with these fields, the optional ones sometimes, and now and then fields nobody knows."""
    known = st.fixed_dictionaries(required, optional=optional or {})
    named = required.keys() | (optional or {}).keys()

    def document(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        # Hypothesis tries words it finds in our own code, so a field nobody knows could get the name of one we do.
        return {**{name: value for name, value in more.items() if name not in named}, **fields}

    return st.builds(document, known, extras)


def messages(kind: str, payload: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return documents({"type": st.just(kind), "payload": payload}, {"id": st.none() | words, "timestamp": words})


error_lists = st.lists(
    st.fixed_dictionaries({"field": words, "message": words}, optional={"code": code_names}), max_size=2
)
problems = documents(
    {"code": code_names, "message": words},
    {
        "details": objects,
        "recoverable": st.booleans(),
        "retry_after_ms": numbers,
        "violations": st.lists(objects, max_size=2),
    },
)
tool_problems = documents(
    {
        "tool_call_id": words,
        "tool": words,
        "code": code_names,
        "message": words,
        "retryable": st.booleans(),
        "max_retries": st.integers(),
    },
    {"details": objects | st.just({"exit_code": 1, "stdout": "", "stderr": "no"}), "retry_after_ms": numbers},
)
bodies = documents(
    {"error": words, "code": code_names, "message": words},
    {
        "suggestions": st.lists(words, max_size=2),
        "retry_after": numbers,
        "request_id": words,
        "violations": error_lists,
    },
)
refusals = documents({"received": st.just(False), "code": code_names, "errors": error_lists}) | documents(
    {"received": st.just(False), "validation_errors": error_lists}, {"timestamp": words}
)
classified = documents(
    {
        "category": st.sampled_from(Category).map(str) | words | st.just("RATE_LIMIT"),
        "isRetryable": st.booleans(),
        "suggestedDelay": numbers,
        "maxRetries": st.integers(),
        "message": words,
    },
    {
        "originalError": json_values
        | st.fixed_dictionaries({"message": words}, optional={"name": words, "stack": words})
    },
)
pairs = st.sampled_from([
    ("ProviderTransient", "RateLimited"), ("ToolTerminal", "NotFound"), ("ExtensionHost", "Unknown"),
    ("ProviderTransient", "NeverSeen"), ("Session", "NeverSeen"), ("NeverSeen", "NeverSeen"),
])  # fmt: skip
typed = st.builds(
    lambda pair, more: {**more, "class": pair[0], "code": pair[1]},
    pairs | st.tuples(words, words),
    documents({}, {"message": words, "context": objects, "payload": json_values}),
)
other_causes = json_values | st.fixed_dictionaries(
    {"class": words, "code": words},
    optional={"message": json_values, "cause": json_values | st.just({"name": "Error"})},
)
typed_errors = st.builds(
    lambda fields, more: {**fields, **more},
    typed,
    st.fixed_dictionaries({}, optional={"errors": st.lists(typed, max_size=2), "cause": other_causes}),
)
reasons = words | st.sampled_from([
    "context_retrieval_failure", "output_format_failure", "subtask_failure", "SUBTASK_FAILURE", "unbound_symbol",
    "llm_error", "context_of_the_future",
])  # fmt: skip
_task_parts = {"details": objects, "content": json_values}
task_errors = (
    documents({"type": st.just("TASK_FAILURE"), "reason": reasons, "message": words}, _task_parts)
    | documents(
        {
            "type": st.just("RESOURCE_EXHAUSTION"),
            "resource": st.sampled_from(["turns", "context", "output"]),
            "message": words,
        },
        {**_task_parts, "metrics": objects | st.just({"used": 10, "limit": 10})},
    )
    | documents({"type": st.just("INVALID_OUTPUT"), "message": words}, {**_task_parts, "violations": json_values})
    | documents(
        {"type": st.just("VALIDATION_ERROR"), "message": words}, {"path": json_values, "invalidModel": json_values}
    )
    | documents({"type": st.just("XML_PARSE_ERROR"), "message": words}, {"location": json_values})
)
notes = st.builds(
    lambda more, error: {**more, **error},
    st.dictionaries(words, json_values, max_size=2),
    st.fixed_dictionaries({}, optional={"error": task_errors | st.none()}),
)
failed_results = documents(
    {"content": json_values, "status": st.just("FAILED")}, {"notes": notes, "parsedContent": json_values}
)
actor_errors = documents(
    {
        "type": st.sampled_from(["validation", "transient", "fatal", "permanent"]),
        "code": code_names,
        "message": words,
        "retryable": st.booleans(),
    },
    {"context": objects | st.none()},
)
responses = documents({"success": st.just(False), "error": actor_errors}, {"data": json_values, "metadata": objects})


class Way(NamedTuple):
    """One view, both directions, and its legal documents."""

    name: str
    write: Callable[..., dict[str, Any]]
    read: Callable[[object], Any]
    documents: st.SearchStrategy[dict[str, Any]]


WAYS = (
    Way("connection_error", wire.connection_error, wire.read, messages("connection_error", problems)),
    Way("error_reply", wire.error_reply, wire.read, messages("error", problems)),
    Way("tool_error", wire.tool_error, wire.read, messages("tool_error", tool_problems)),
    Way("http_body", wire.http_body, wire.read, bodies),
    Way("hook_reply", wire.hook_reply, wire.read, refusals),
    Way("category", category.write, category.read, classified),
    Way("classed", classed.write, classed.read, typed_errors),
    Way("task", task.write, task.read, task_errors),
    Way("task_result", task.write_result, task.read_result, failed_results),
    Way("response", response.write, response.read, responses),
)


def exact(document: object) -> str:
    """A document as text: to Python `1`, `1.0` and `True` are equal, on the wire they are not."""
    return json.dumps(document, sort_keys=True, allow_nan=False)
