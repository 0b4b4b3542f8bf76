"""The description of the protocol: it says what the reader does, has an example of every message, and the files in docs/ are up to date."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from holdfast.wire.description import asyncapi, json_schema
from holdfast.wire.envelope import Envelope, Invalid, encode, read
from holdfast.wire.examples import CLIENT_EXAMPLES, SERVER_EXAMPLES, example
from holdfast.wire.messages import DURABLE, FROM_CLIENT, FROM_SERVER, read_payload

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()


def errors(name: str, message: Any) -> list[str]:
    """Return what the JSON Schema finds wrong with a message."""
    schema = {"$schema": SCHEMA["$schema"], "$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(message)]


def is_accepted(type_: str, payload: dict[str, Any]) -> bool:
    return not isinstance(read_payload(type_, payload, "id"), Invalid)


def test_every_message_has_one_example_and_the_schema_is_a_schema() -> None:
    assert set(CLIENT_EXAMPLES) == set(FROM_CLIENT)
    assert set(SERVER_EXAMPLES) == set(FROM_SERVER)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("type_", FROM_CLIENT)
def test_an_example_of_a_client_is_read_by_the_server_and_fits_the_schema(type_: str) -> None:
    shown = example(type_, from_client=True)
    message = read(json.dumps(shown))
    assert isinstance(message, Envelope)
    assert is_accepted(type_, message.payload)
    assert errors("ClientMessage", shown) == []


@pytest.mark.parametrize("type_", FROM_SERVER)
def test_an_example_of_the_server_fits_its_class_and_the_schema(type_: str) -> None:
    shown = example(type_, from_client=False)
    message = read(json.dumps(shown))
    assert isinstance(message, Envelope)
    assert bool(message.offset) == (type_ in DURABLE)
    payload = msgspec.convert(message.payload, FROM_SERVER[type_])
    # What is shown is what the server would write: no field is misspelt, which would be ignored as unknown.
    assert set(msgspec.to_builtins(payload)) <= set(shown["payload"]) <= set(_fields(FROM_SERVER[type_]))
    assert errors("ServerMessage", shown) == []
    assert errors("ServerMessage", json.loads(encode(message))) == []


def _fields(kind: type) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("type_", FROM_CLIENT)
def test_the_schema_and_the_reader_agree_about_every_wrong_value(type_: str) -> None:
    good = CLIENT_EXAMPLES[type_]
    name = FROM_CLIENT[type_].__name__
    changed: list[dict[str, Any]] = [{key: good[key] for key in good if key != left} for left in good]
    for field in _fields(FROM_CLIENT[type_]):
        changed += [good | {field: value} for value in (None, True, 5, 1.5, "", "text", [], [5], ["x"], {}, {"a": 1})]
    for payload in changed:
        assert is_accepted(type_, payload) == (errors(name, payload) == []), payload


@pytest.mark.parametrize("field", ["type", "id", "timestamp", "payload"])
@pytest.mark.parametrize("value", [None, 5, [], "no such thing"])
def test_the_schema_rejects_what_the_envelope_rejects(field: str, value: Any) -> None:
    message = example("session_message", from_client=True) | {field: value}
    assert errors("ClientMessage", message)
    assert errors("ClientMessage", {key: message[key] for key in message if key != field})


def test_a_message_of_the_log_without_its_offset_does_not_fit() -> None:
    message = example("stream_chunk", from_client=False)
    assert errors("ServerMessage", {key: message[key] for key in message if key != "offset"})
    assert errors("ServerMessage", message | {"offset": 0})


def test_an_error_about_an_unreadable_frame_has_no_id_and_fits() -> None:
    assert errors("ServerMessage", example("error", from_client=False) | {"id": None}) == []


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = asyncapi()
    found = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found.append(value["$ref"])
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(document)
    for reference in set(found):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    listed = {each["name"] for each in document["components"]["messages"].values()}
    assert listed == set(FROM_CLIENT) | set(FROM_SERVER)


def test_the_files_in_docs_are_what_the_script_writes() -> None:
    files = runpy.run_path(str(ROOT / "scripts" / "bridge_protocol.py"))["files"]()
    stale = [path.name for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python scripts/bridge_protocol.py"
    assert len(files) == 3
