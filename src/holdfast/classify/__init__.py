"""Turn a foreign failure into a `Fault`: an exception, an HTTP response, a stream, a process exit, a line of text.

Readers turn the failure into `Evidence`. Rules run in order until one gives a `Verdict`. The classifier adds the catalog's
defaults and the delay that the response requests. The time is a parameter, no library is imported to recognise its
exceptions, and nothing here ever raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.classify.classifier import (
        CLASSIFIER,
        Classifier,
        from_class,
        from_exception,
        from_grpc,
        from_http,
        from_jsonrpc,
        from_process,
        from_stream,
        from_text,
    )
    from holdfast.classify.evidence import Evidence, Raised, Rule, Source, Verdict
    from holdfast.classify.readers.exceptions import is_ordinary
    from holdfast.classify.records import Record, from_record, read_record
    from holdfast.classify.rules.status import permanent_by_status
    from holdfast.classify.vocabulary import codes_for
    from holdfast.faults import PATIENCE_S

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
    "codes_for",
    "from_class",
    "from_exception",
    "from_grpc",
    "from_http",
    "from_jsonrpc",
    "from_process",
    "from_record",
    "from_stream",
    "from_text",
    "is_ordinary",
    "permanent_by_status",
    "read_record",
]

# Most programs that import Holdfast never see a failure. So the rules and their patterns are loaded at the first
# failure.
_HOMES = (
    dict.fromkeys(__all__, "holdfast.classify.classifier")
    | dict.fromkeys(("Evidence", "Raised", "Rule", "Source", "Verdict"), "holdfast.classify.evidence")
    | dict.fromkeys(("Record", "from_record", "read_record"), "holdfast.classify.records")
    | {
        "PATIENCE_S": "holdfast.faults",
        "codes_for": "holdfast.classify.vocabulary",
        "is_ordinary": "holdfast.classify.readers.exceptions",
        "permanent_by_status": "holdfast.classify.rules.status",
    }
)
__getattr__ = loader(__name__, globals(), _HOMES)
