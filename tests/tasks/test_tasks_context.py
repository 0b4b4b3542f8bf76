"""Context for tasks: files that fit are found, a damaged index is rebuilt, another way is tried, and every failure is typed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from holdfast import HoldfastError, InvalidError
from holdfast.documents.task import TaskSystem
from holdfast.faults import Fault
from holdfast.tasks import ContextIndex, ContextUse, Status, Task


@pytest.fixture
def files(tmp_path):
    root = tmp_path / "files"
    (root / "deep").mkdir(parents=True)
    (root / "tokens.md").write_text("How tokens are revoked: holdfast tokens revoke closes every connection.")
    (root / "deep" / "storage.md").write_text("The store writes each entry once. Tokens are not stored.")
    (root / "picture.bin").write_bytes(b"\0\1tokens")
    (root / ".hidden.md").write_text("tokens revoked")
    (root / "link.md").symlink_to("/etc/hostname")
    return root


def match(index, query, **options):
    return asyncio.run(index.match(query, **options))


def test_N3_15_the_best_file_comes_first_with_its_relevance_and_an_excerpt(files):
    found = match(ContextIndex(files), "how are tokens revoked?")
    assert [each.path for each in found.matches] == ["tokens.md", "deep/storage.md"]
    assert 1 >= found.matches[0].relevance > found.matches[1].relevance > 0
    assert "revoke" in found.matches[0].excerpt
    assert not found.retried


def test_S3_14_nothing_fits_is_tried_once_more_with_words_that_begin_alike_and_then_typed(files):
    index = ContextIndex(files)
    assert match(index, "storagesque").retried
    with pytest.raises(HoldfastError) as raised:
        match(index, "zebra giraffe")
    assert raised.value.fault.code == "TASK_CONTEXT_MATCHING_FAILED"
    assert raised.value.fault.context["success_score"] == 0.0


@pytest.mark.parametrize(
    "query", ['"', "NEAR(a b)", "a AND OR", "* ( ) : ^", "", "NOT tokens -x", "name:tokens", "x'; DROP TABLE file; --"]
)
def test_words_of_a_prompt_are_never_operators_of_the_search(files, query):
    index = ContextIndex(files)
    with suppress(HoldfastError):
        match(index, query)
    assert match(index, "tokens").matches


def test_S3_17_a_damaged_index_is_rebuilt_from_the_files(files, tmp_path):
    database = tmp_path / "index.db"
    index = ContextIndex(files, database)
    assert match(index, "tokens").matches
    index.close()
    database.write_bytes(b"this is no database" * 400)
    again = ContextIndex(files, database)
    assert [each.path for each in match(again, "revoked").matches] == ["tokens.md"]
    again.close()


def test_an_index_is_kept_and_only_changed_files_are_read_again(files, tmp_path):
    first = ContextIndex(files, tmp_path / "index.db")
    assert match(first, "tokens").matches
    first.close()
    second = ContextIndex(files, tmp_path / "index.db")
    assert asyncio.run(second.refresh()) == 0
    (files / "tokens.md").unlink()
    (files / "new.md").write_text("zebra")
    assert asyncio.run(second.refresh()) == 2
    assert [each.path for each in match(second, "zebra").matches] == ["new.md"]
    second.close()


def test_an_index_that_cannot_be_kept_is_a_retrieval_failure(files, tmp_path):
    with pytest.raises(HoldfastError) as raised:
        match(ContextIndex(files, tmp_path), "tokens")
    assert raised.value.fault.code == "TASK_CONTEXT_RETRIEVAL_FAILED"
    with pytest.raises(InvalidError, match="a folder"):
        ContextIndex(tmp_path / "nowhere")


def test_N3_5_a_task_with_fresh_context_gets_the_files_that_fit_within_its_limit(files):
    prompts = []

    async def perform(assignment):
        prompts.append(assignment.prompt)
        return "ok"

    system = TaskSystem(perform, context=ContextIndex(files))
    fresh = ContextUse(fresh=True, inherit="none")
    assert asyncio.run(system.run(Task("how are tokens revoked?", use=fresh))) == "ok"
    assert prompts[0].startswith("tokens.md:\nHow tokens are revoked")
    asyncio.run(system.run(Task("how are tokens revoked?", use=fresh, context=12)))
    assert len(prompts[1]) <= 48
    asyncio.run(system.run(Task("how are tokens revoked?")))
    assert prompts[2] == "how are tokens revoked?"


def test_S3_17_what_is_not_found_by_content_is_looked_for_by_name_and_the_verb_does_the_same(files):
    (files / "giraffes.bin").write_bytes(b"\0")
    fresh = ContextUse(fresh=True, inherit="none")

    async def perform(assignment):
        return assignment.prompt

    system = TaskSystem(perform, context=ContextIndex(files))
    failed = asyncio.run(system.execute_task(Task("zebra", use=fresh)))
    assert (failed.notes["error"]["reason"], failed.fault.context["alternative"]) == (
        "context_matching_failure",
        "metadata",
    )
    error = {
        "type": "TASK_FAILURE",
        "reason": "context_retrieval_failure",
        "message": "Failed to access memory system index",
        "details": {"error": "Index corruption detected"},
    }
    found = asyncio.run(system.recover_from_context_failure(error, "giraffes"))
    assert (found.status, found.value["matches"][0]["path"]) == (Status.COMPLETE, "giraffes.bin")
    other = asyncio.run(system.recover_from_context_failure(Fault.of("AUTH_FAILED"), "giraffes"))
    assert (other.status, other.fault.code) == (Status.FAILED, "AUTH_FAILED")


def test_N3_5_options_that_contradict_each_other_are_rejected():
    with pytest.raises(InvalidError, match="inherit='none'"):
        ContextUse(fresh=True)
