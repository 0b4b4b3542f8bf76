"""The JSON Schema of `holdfast.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import msgspec
from config_kit import WHOLE

from holdfast import Circuit
from holdfast.config import json_schema

SCHEMA = Path(__file__).parents[2] / "docs/reference/config.schema.json"


def test_the_schema_in_the_docs_is_the_generated_one():
    assert msgspec.json.decode(SCHEMA.read_bytes()) == json_schema(), (
        "run: holdfast config schema > docs/reference/config.schema.json"
    )


def test_the_schema_accepts_a_whole_file_and_rejects_mistakes():
    check = jsonschema.Draft202012Validator(json_schema())
    jsonschema.Draft202012Validator.check_schema(json_schema())
    check.validate(tomllib.loads(WHOLE))
    wrong = (
        "polic = 1",
        "phase = 5",
        "phase = 1\nbase = 'batch'",
        "[policy]\nattempts = '3'",
        "[policy]\ncircuit = 'brige'",
        "[policy.per_code.NO_SUCH]",
        "[targets.claude]\nx = 1",
    )
    assert [text for text in wrong if check.is_valid(tomllib.loads(text))] == []


def test_the_schema_describes_every_option():
    tables = json_schema()["$defs"]
    undescribed = [
        f"{table}.{name}"
        for table, described in tables.items()
        for name, option in described["properties"].items()
        if "description" not in option
    ]
    assert undescribed == []
    assert tables["Policy"]["properties"]["max_retry_after"]["default"] == 900
    assert Circuit.__name__ in tables
