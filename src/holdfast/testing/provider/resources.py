"""What a provider serves besides replies: lists of models, token counts, embeddings, files, batches and stored responses.

Files and batches are kept in memory until the provider is reset. A batch is in progress when it is created, and done when its client asks
for it again.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.testing.provider.dialect import JSON, MODELS, as_json
from holdfast.testing.provider.gemini import counted
from holdfast.testing.provider.http import Request
from holdfast.testing.provider.replies import reply_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.testing.provider.dialect import ProviderDialect
    from holdfast.testing.provider.replies import Turn

_KEPT = 1_000
_MADE = "2025-01-01T00:00:00Z"
_CREATED = 1_735_689_600
_DAY = 86_400
_LINES = "application/x-jsonl"
_BYTES = "application/octet-stream"
_DIMENSIONS = 1_536
# A client that wants more than the largest real model has is wrong, and a huge number would fill the memory.
_MOST_DIMENSIONS = 4_096


class MissingError(Exception):
    """The client names a thing that the provider does not have. The message is the answer's."""


class Content(NamedTuple):
    """A body."""

    data: bytes
    content_type: str = JSON


class Storage:
    """What clients have stored. Only the newest thousand things of each kind are kept."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._kinds: dict[str, dict[str, dict[str, Any]]] = {}
        self._made = 0

    def add(self, kind: str, document: dict[str, Any]) -> str:
        """Keep a document. Return its id, which is new unless the document has one."""
        with self.lock:
            self._made += 1
            name = str(document.setdefault("id", f"{kind}_{self._made:024d}"))
            kept = self._kinds.setdefault(kind, {})
            kept[name] = document
            while len(kept) > _KEPT:
                del kept[next(iter(kept))]
            return name

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return a document. Raises `MissingError`."""
        with self.lock:
            if (found := self._kinds.get(kind, {}).get(name)) is None:
                raise MissingError(f"No such {kind} object: {name}")
            return found

    def remove(self, kind: str, name: str) -> None:
        """Remove a document. Raises `MissingError`."""
        with self.lock:
            self.get(kind, name)
            del self._kinds[kind][name]

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the documents of a kind, the newest first."""
        with self.lock:
            return list(self._kinds.get(kind, {}).values())[::-1]


class ResourceCall(NamedTuple):
    """A request for a resource."""

    request: Request
    names: dict[str, str]
    """The parts of the path that vary."""
    dialect: ProviderDialect
    storage: Storage
    replies: str | Sequence[str | Turn]
    """How replies are made. Batches need it."""
    dialect_of: Callable[[Request], ProviderDialect | None]
    """Returns the protocol of a request inside a batch."""

    @property
    def is_anthropic(self) -> bool:
        """Whether the client speaks Anthropic's protocol on a path that OpenAI uses too."""
        return "anthropic-version" in self.request.headers


def _json(document: Any) -> Content:
    return Content(as_json(document))


def _listed(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a list in the form of both Anthropic and OpenAI."""
    ends = {"first_id": documents[0]["id"], "last_id": documents[-1]["id"]} if documents else {}
    return {"object": "list", "data": documents, "has_more": False, **ends}


# --- models and tokens ---


def _model(call: ResourceCall, name: str) -> dict[str, Any]:
    if call.is_anthropic:
        return {"type": "model", "id": name, "display_name": name, "created_at": _MADE, "lifecycle": "active"}
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "holdfast"}


def models(call: ResourceCall) -> Content:
    """List the models."""
    return _json(_listed([_model(call, name) for name in MODELS]))


def model(call: ResourceCall) -> Content:
    """Describe one model."""
    # Every name is a model, because replies do not depend on it either.
    return _json(_model(call, call.names["model"]))


def _gemini_model(name: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "version": "001",
        "displayName": name,
        "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def gemini_models(_call: ResourceCall) -> Content:
    """List the models as Gemini does."""
    return _json({"models": [_gemini_model(name) for name in MODELS]})


def gemini_model(call: ResourceCall) -> Content:
    """Describe one model as Gemini does."""
    return _json(_gemini_model(call.names["model"]))


def count_tokens(call: ResourceCall) -> Content:
    """Count the tokens of a Messages request."""
    return _json({"input_tokens": call.dialect.prompt(call.request).tokens})


def count_input_tokens(call: ResourceCall) -> Content:
    """Count the tokens of a Responses request."""
    return _json({"object": "response.input_tokens", "input_tokens": call.dialect.prompt(call.request).tokens})


def count_gemini_tokens(call: ResourceCall) -> Content:
    """Count the tokens of a Gemini request."""
    return _json(counted(len(call.request.body) // 4))


# --- embeddings ---


def embeddings(call: ResourceCall) -> Content:
    """Embed texts."""
    document = call.request.document
    given = document.get("input")
    # A list of numbers is one text that the client has already split into tokens.
    inputs = given if isinstance(given, list) and not all(isinstance(each, int) for each in given) else [given]
    wanted = document.get("dimensions")
    size = min(wanted, _MOST_DIMENSIONS) if isinstance(wanted, int) and wanted > 0 else _DIMENSIONS
    as_base64 = document.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": at, "embedding": _packed(vector) if as_base64 else vector}
        for at, vector in enumerate(_vector(each, size) for each in inputs)
    ]
    tokens = len(call.request.body) // 4
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": call.request.model, "usage": usage})


def gemini_embedding(call: ResourceCall) -> Content:
    """Embed texts as Gemini does."""
    wanted = call.request.document.get("outputDimensionality")
    size = min(wanted, _MOST_DIMENSIONS) if isinstance(wanted, int) and wanted > 0 else _DIMENSIONS
    requests = call.request.list_of("requests")
    vectors = [{"values": _vector(each.get("content"), size)} for each in requests or [call.request.document]]
    return _json({"embeddings": vectors} if requests else {"embedding": vectors[0]})


def _vector(text: Any, size: int) -> list[float]:
    """Return a vector of length 1. The same text has the same vector in every run."""
    seed = hashlib.sha256(as_json(text)).digest()
    blocks = (hashlib.sha256(seed + at.to_bytes(4, "big")).digest() for at in range(size // 16 + 1))
    numbers = [number / 65_536 - 0.5 for block in blocks for number in struct.unpack("!16H", block)][:size]
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


# --- files ---

_BOUNDARY = re.compile(r"boundary=\"?([^\";]+)")
_FIELD = re.compile(rb"name=\"([^\"]*)\"")
_FILENAME = re.compile(rb"filename=\"([^\"]*)\"")


def _fields(request: Request) -> dict[str, tuple[str, bytes]]:
    """Return the fields of a form: the name of the file in each, if it is one, and its bytes."""
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    fields: dict[str, tuple[str, bytes]] = {}
    if boundary is None:
        return fields
    for part in request.body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        if name := _FIELD.search(head):
            filename = _FILENAME.search(head)
            fields[name[1].decode("utf-8", "replace")] = (
                filename[1].decode("utf-8", "replace") if filename else "",
                data.removesuffix(b"\r\n"),
            )
    return fields


def upload_file(call: ResourceCall) -> Content:
    """Keep an uploaded file."""
    fields = _fields(call.request)
    filename, data = fields.get("file", ("upload", b""))
    purpose = fields.get("purpose", ("", b"user_data"))[1].decode("utf-8", "replace")
    return _json(_shown_file(call, _keep_file(call.storage, filename, purpose, data)))


def _keep_file(storage: Storage, filename: str, purpose: str, data: bytes) -> dict[str, Any]:
    file: dict[str, Any] = {"filename": filename or "upload", "purpose": purpose, "data": data}
    storage.add("file", file)
    return file


def _shown_file(call: ResourceCall, file: dict[str, Any]) -> dict[str, Any]:
    size, shown = len(file["data"]), {"id": file["id"], "filename": file["filename"]}
    if call.is_anthropic:
        kind = {"type": "file", "mime_type": _BYTES, "downloadable": False}
        return {**shown, **kind, "size_bytes": size, "created_at": _MADE}
    more = {"object": "file", "status": "processed", "purpose": file["purpose"]}
    return {**shown, **more, "bytes": size, "created_at": _CREATED}


def files(call: ResourceCall) -> Content:
    """List the files."""
    return _json(_listed([_shown_file(call, file) for file in call.storage.all("file")]))


def file(call: ResourceCall) -> Content:
    """Describe one file."""
    return _json(_shown_file(call, call.storage.get("file", call.names["id"])))


def file_content(call: ResourceCall) -> Content:
    """Send the bytes of a file."""
    return Content(call.storage.get("file", call.names["id"])["data"], _BYTES)


def delete_file(call: ResourceCall) -> Content:
    """Remove a file."""
    name = call.names["id"]
    call.storage.remove("file", name)
    return _json({"id": name, "type": "file_deleted"} if call.is_anthropic else _deleted(name, "file"))


def _deleted(name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "deleted": True}


# --- batches of OpenAI ---


def create_batch(call: ResourceCall) -> Content:
    """Begin a batch whose requests are in a file."""
    document = call.request.document
    batch: dict[str, Any] = {
        "object": "batch",
        "endpoint": str(document.get("endpoint", "/v1/chat/completions")),
        "errors": None,
        "input_file_id": str(document.get("input_file_id", "")),
        "completion_window": str(document.get("completion_window", "24h")),
        "status": "in_progress",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": _CREATED,
        "in_progress_at": _CREATED,
        "expires_at": _CREATED + _DAY,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": document.get("metadata"),
    }
    call.storage.get("file", batch["input_file_id"])  # raises if there is no such file
    call.storage.add("batch", batch)
    return _json(batch)


def batch(call: ResourceCall) -> Content:
    """Complete a batch and describe it."""
    with call.storage.lock:
        batch = call.storage.get("batch", call.names["id"])
        if batch["status"] == "in_progress":
            _complete(call, batch)
        return _json(batch)


def _complete(call: ResourceCall, batch: dict[str, Any]) -> None:
    lines = call.storage.get("file", batch["input_file_id"])["data"].splitlines()
    answers = [_batch_line(call, line, at) for at, line in enumerate(lines, 1) if line.strip()]
    failed = sum(answer["response"]["status_code"] != 200 for answer in answers)
    output = _keep_file(
        call.storage, "output.jsonl", "batch_output", b"".join(as_json(each) + b"\n" for each in answers)
    )
    batch |= {
        "status": "completed",
        "completed_at": _CREATED,
        "output_file_id": output["id"],
        "request_counts": {"total": len(answers), "completed": len(answers) - failed, "failed": failed},
    }


def _batch_line(call: ResourceCall, line: bytes, number: int) -> dict[str, Any]:
    document = Request("POST", "", {}, line).document
    body = as_json(document.get("body") or {})
    request = Request("POST", str(document.get("url", "")), call.request.headers, body)
    dialect = call.dialect_of(request)
    status, answer = 400, call.dialect.error(call.dialect.errors["bad-request"])
    if dialect is not None and request.model:
        status, answer = 200, dialect.whole(reply_to(dialect.prompt(request), call.replies), request, number)
    response = {"status_code": status, "request_id": f"req_{number:024d}", "body": answer}
    return {"id": f"batch_req_{number}", "custom_id": document.get("custom_id"), "response": response, "error": None}


def batches(call: ResourceCall) -> Content:
    """List the batches."""
    return _json(_listed(call.storage.all("batch")))


def cancel_batch(call: ResourceCall) -> Content:
    """Cancel a batch."""
    found = call.storage.get("batch", call.names["id"])
    if found["status"] == "in_progress":
        found["status"] = "cancelled"
    return _json(found)


# --- batches of Anthropic ---

_NONE = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}


def create_message_batch(call: ResourceCall) -> Content:
    """Begin a batch of Messages requests."""
    requests = call.request.list_of("requests")
    batch: dict[str, Any] = {
        "type": "message_batch",
        "processing_status": "in_progress",
        "request_counts": {**_NONE, "processing": len(requests)},
        "ended_at": None,
        "created_at": _MADE,
        "expires_at": "2025-01-02T00:00:00Z",
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": None,
    }
    name = call.storage.add("msgbatch", batch)
    call.storage.add("msgbatch_requests", {"id": name, "requests": requests})
    return _json(batch)


def message_batch(call: ResourceCall) -> Content:
    """End a batch of Messages requests and describe it."""
    with call.storage.lock:
        batch = call.storage.get("msgbatch", call.names["id"])
        if batch["processing_status"] != "ended":
            _end_message_batch(call, batch, "succeeded")
        return _json(batch)


def _end_message_batch(call: ResourceCall, batch: dict[str, Any], how: str) -> None:
    count = sum(batch["request_counts"].values())
    # The results are at the address that the client used, because the provider does not know its own.
    host = call.request.headers.get("host", "127.0.0.1")
    batch |= {
        "processing_status": "ended",
        "ended_at": _MADE,
        "request_counts": {**_NONE, how: count},
        "results_url": f"http://{host}/v1/messages/batches/{batch['id']}/results",
    }


def message_batches(call: ResourceCall) -> Content:
    """List the batches of Messages requests."""
    return _json(_listed(call.storage.all("msgbatch")))


def message_batch_results(call: ResourceCall) -> Content:
    """Send the results of a batch, one a line."""
    name = call.names["id"]
    found = call.storage.get("msgbatch", name)
    if found["processing_status"] != "ended":
        raise MissingError(f"batch {name} has no results yet")
    canceled = found["request_counts"]["canceled"]
    lines = []
    for at, each in enumerate(call.storage.get("msgbatch_requests", name)["requests"], 1):
        result = {"type": "canceled"} if canceled else _message_result(call, each.get("params"), at)
        lines.append(as_json({"custom_id": each.get("custom_id"), "result": result}))
    return Content(b"".join(line + b"\n" for line in lines), _LINES)


def _message_result(call: ResourceCall, params: Any, number: int) -> dict[str, Any]:
    request = Request("POST", "/v1/messages", call.request.headers, as_json(params))
    if not request.model:
        return {"type": "errored", "error": call.dialect.error(call.dialect.errors["bad-request"])}
    reply = reply_to(call.dialect.prompt(request), call.replies)
    return {"type": "succeeded", "message": call.dialect.whole(reply, request, number)}


def cancel_message_batch(call: ResourceCall) -> Content:
    """Cancel a batch of Messages requests."""
    with call.storage.lock:
        batch = call.storage.get("msgbatch", call.names["id"])
        if batch["processing_status"] != "ended":
            batch["cancel_initiated_at"] = _MADE
            shown = {**batch, "processing_status": "canceling"}
            _end_message_batch(call, batch, "canceled")
            return _json(shown)
        return _json(batch)


def delete_message_batch(call: ResourceCall) -> Content:
    """Remove a batch of Messages requests."""
    name = call.names["id"]
    call.storage.remove("msgbatch", name)
    return _json({"id": name, "type": "message_batch_deleted"})


# --- stored responses ---


def response(call: ResourceCall) -> Content:
    """Send a stored response again."""
    return _json(call.storage.get("response", call.names["id"]))


def cancel_response(call: ResourceCall) -> Content:
    """Send a stored response again. It is complete, so there is nothing to cancel."""
    return response(call)


def delete_response(call: ResourceCall) -> Content:
    """Remove a stored response."""
    name = call.names["id"]
    call.storage.remove("response", name)
    return _json(_deleted(name, "response"))


def response_items(call: ResourceCall) -> Content:
    """List the input of a stored response."""
    name = call.names["id"]
    given = call.storage.get("response_input", name)["input"]
    items = given if isinstance(given, list) else [_message_item(given)]
    shown = [{"id": f"msg_{at}", **item} for at, item in enumerate(items) if isinstance(item, dict)]
    return _json(_listed(shown))


def _message_item(text: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text if isinstance(text, str) else ""}]
    return {"type": "message", "role": "user", "status": "completed", "content": content}
