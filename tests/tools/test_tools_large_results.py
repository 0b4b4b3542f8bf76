"""Results of any size: what the model gets is bounded, and the whole is kept in a file where the program wants that."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest

from holdfast import tool
from holdfast.events import SuppressedError
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.testing import Capture, run
from holdfast.tools import Toolbox
from holdfast.tools.output import cut_text, show_result

MEGABYTE = 1_048_576


def plain(text: str) -> str:
    return text


def toolbox_of(value, **options):
    @tool(effect="read")
    async def make() -> object:
        """Return a value."""
        return value

    return Toolbox([make], **options)


@pytest.mark.parametrize("kind", ["text", "bytes", "wide text"])
def test_G23_100_megabytes_are_capped_with_a_mark_and_take_little_memory(kind):
    value = {"text": "x" * 100 * MEGABYTE, "bytes": b"x" * 100 * MEGABYTE, "wide text": "ø" * 50 * MEGABYTE}[kind]

    async def main():
        box = toolbox_of(value)
        tracemalloc.start()
        answer = await box.answer("make")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert not answer.is_error
        assert len(answer.content.encode()) < 65_600
        assert f"[{100 * MEGABYTE - 65_536} bytes cut]" in answer.content
        assert peak < 4 * MEGABYTE

    run(main())


def test_G23_binary_data_is_named_and_not_shown():
    async def main():
        answer = await toolbox_of(bytes(range(256)) * 4096 * 100).answer("make")
        assert answer.content == f"[{100 * MEGABYTE} bytes of binary data]"

    run(main())


@pytest.mark.parametrize(
    "value", ["héllo " * MEGABYTE, b"\x89PNG\r\n\x1a\n\0" * MEGABYTE, {"numbers": list(range(50_000))}]
)
def test_G23_the_whole_is_kept_in_a_file_that_only_its_owner_reads(value, tmp_path):
    answer = run(toolbox_of(value, keep=tmp_path / "results").answer("make"))
    (path,) = (tmp_path / "results").iterdir()
    size = path.stat().st_size
    assert f"[the whole result, {size} bytes, is in {path}]" in answer.content
    assert path.stat().st_mode & 0o777 == 0o600
    if isinstance(value, dict):
        assert path.read_text().startswith('{"numbers":[0,1,2')
    else:
        assert path.read_bytes() == (value if isinstance(value, bytes) else value.encode())


def test_G23_a_result_that_fits_is_in_no_file(tmp_path):
    answer = run(toolbox_of("small", keep=tmp_path).answer("make"))
    assert (answer.content, list(tmp_path.iterdir())) == ("small", [])


def test_a_result_that_cannot_be_kept_is_no_failure_and_the_model_knows(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    async def main():
        capture = Capture()
        with default_runtime().on(capture):
            answer = await toolbox_of("x" * MEGABYTE, keep=blocked).answer("make")
        assert not answer.is_error
        assert "could not be kept" in answer.content
        assert any(isinstance(event, SuppressedError) for event in capture.events)

    run(main())


def test_a_secret_on_the_edge_of_the_cut_is_masked(monkeypatch):
    secret = "the-key-of-this-process-0123456789"
    monkeypatch.setenv("MY_API_KEY", secret)
    process_redactor.cache_clear()
    half = 65_536 // 2
    for begin in (half - len(secret), half - 20, half - 1):
        text = "x" * begin + secret + "y" * MEGABYTE + secret + "z" * (half - 5)
        content = run(toolbox_of(text).answer("make")).content
        assert not re.search("the-key|of-this-process|0123456789", content)
    process_redactor.cache_clear()


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 100, 1000])
@pytest.mark.parametrize("unit", ["a", "é", "漢", "𝒳"])
def test_a_cut_never_breaks_a_character_and_keeps_the_limit(limit, unit):
    for length in (0, 1, limit // 2, limit, limit + 1, 5 * limit):
        text = unit * length
        shown = show_result(text, limit, plain, 0)
        kept = shown.text.replace("\n", "").partition("…[")[0] + shown.text.replace("\n", "").rpartition("]…")[2]
        assert shown.total == len(text.encode())
        assert set(shown.text.partition("…[")[0]) <= {unit, "\n"}
        if shown.cut:
            assert len(kept.encode()) <= max(limit, 2)
        else:
            assert shown.text == text
        assert cut_text(text, limit) == text or "bytes cut" in cut_text(text, limit)


def test_the_folder_may_be_given_as_a_text(tmp_path):
    run(toolbox_of("x" * MEGABYTE, keep=str(tmp_path)).answer("make"))
    assert len(list(Path(tmp_path).iterdir())) == 1
