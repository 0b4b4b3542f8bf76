"""The secrets of this process are masked wherever they turn up."""

from __future__ import annotations

import pytest

from holdfast.runtime import redactor_for


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY",
        "OPENAI_APIKEY",
        "GITHUB_TOKEN",
        "TOKEN",
        "DB_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "AWS_SECRET_ACCESS_KEY",
        "CLIENT_SECRET",
        "SSH_PASSPHRASE",
        "GOOGLE_CREDENTIALS",
        "BASIC_AUTH",
        "stripe_secret_key",
        "KEY_OF_LIFE",
    ],
)
def test_the_value_of_a_variable_named_like_a_secret_is_masked(name):
    assert redactor_for({name: "correct-horse"}).text("with correct-horse") == "with [redacted]"


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "AUTHOR", "SECRETARY", "PWD"]
)
def test_other_variables_may_be_told(name):
    assert redactor_for({name: "correct-horse"}).text("with correct-horse") == "with correct-horse"


def test_a_value_too_short_to_be_a_secret_is_not_looked_for():
    assert redactor_for({"API_KEY": "dev", "TOKEN": ""}).text("dev mode") == "dev mode"


def test_by_default_the_environment_of_the_process(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse")
    assert redactor_for().text("with correct-horse") == "with [redacted]"
    monkeypatch.delenv("MY_SERVICE_TOKEN")
    assert redactor_for().text("with correct-horse") == "with correct-horse"


def test_shapes_are_masked_besides():
    assert redactor_for({}).text("sk-ant-api03-AbCdEfGhIjKl") == "[redacted]"
