"""Recognise a foreign failure: an exception, an HTTP answer, a stream, a process exit, a line of text → `Fault`.

Readers turn the failure into `Evidence`; rules, asked in order, give a `Verdict`; the classifier concludes with the
catalog's defaults and the delay the other side asked for. `now` is passed in, no library is imported to recognise its
exceptions, and nothing here ever raises.
"""

from __future__ import annotations

from holdfast.classify.classifier import PATIENCE_S, Classifier
from holdfast.classify.evidence import Evidence, Raised, Rule, Source, Verdict
from holdfast.classify.recognise import (
    CLASSIFIER,
    from_exception,
    from_grpc,
    from_http,
    from_jsonrpc,
    from_process,
    from_stream,
    from_text,
)
from holdfast.classify.records import Record, from_record, read_record

__all__ = [
    "CLASSIFIER",
    "PATIENCE_S",
    "Classifier",
    "Evidence",
    "Raised",
    "Record",
    "Rule",
    "Source",
    "Verdict",
    "from_exception",
    "from_grpc",
    "from_http",
    "from_jsonrpc",
    "from_process",
    "from_record",
    "from_stream",
    "from_text",
    "read_record",
]
