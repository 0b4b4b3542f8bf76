"""What the SDKs raise against the fault provider and the classifier did not know."""

from __future__ import annotations

import json

from holdfast import fault_of
from holdfast.classify import from_record, read_record


def verdict(message, kind="not_found_error"):
    body = f'{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}'
    return from_record(read_record(json.dumps({"kind": "http", "status": 404, "headers": {}, "body": body})), now=0.0)


def test_anthropic_names_the_missing_model_and_says_no_more():
    assert verdict("model: claude-9").code == "PROVIDER_MODEL_NOT_FOUND"
    assert verdict("model: claude-9").scope == "model"
    assert verdict("file: report.pdf").code == "PROVIDER_ENDPOINT_NOT_FOUND"


def test_openai_misses_the_last_event_of_a_stream():
    error = RuntimeError("Didn't receive a `response.completed` event.")
    assert fault_of(error).code == "PROVIDER_STREAM_CUT"
