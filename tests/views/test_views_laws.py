"""The laws every view keeps, over every code and over legal, odd and hopeless documents."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views_strategies import WAYS, Way, exact, extras, faults, json_values

from holdfast.faults import CODES, Fault, InvalidError, Partial

every_view = pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
quick = settings(max_examples=50, deadline=None)


@every_view
@quick
@given(data=st.data())
def test_law_1_a_document_read_and_written_is_the_same_document(way: Way, data):
    document = data.draw(way.documents)
    before = exact(document)
    fault = way.read(document)
    assert exact(way.write(fault)) == before
    assert exact(document) == before, "reading must not change what it reads"


@every_view
@quick
@given(fault=faults)
def test_law_2_a_fault_that_travels_along_comes_back_whole(way: Way, fault: Fault):
    document = msgspec.json.decode(msgspec.json.encode(way.write(fault, with_fault=True)))
    assert way.read(document) == fault


@every_view
@quick
@given(fault=faults)
def test_law_3_what_a_view_shows_of_a_fault_survives_the_journey(way: Way, fault: Fault):
    document = way.write(fault)
    assert exact(way.write(way.read(document))) == exact(document)


@every_view
def test_every_code_passes_through_every_view(way: Way):
    for code in CODES:
        fault = Fault.of(code, partial=Partial(payload="so far"))
        assert way.read(way.write(fault, with_fault=True)) == fault
        assert way.write(way.read(way.write(fault))) == way.write(fault), code


@every_view
@quick
@given(data=st.data())
def test_reading_never_raises_anything_but_invalid_error(way: Way, data):
    document = data.draw(json_values | way.documents.flatmap(_broken))
    fault, rejection = _read_or_reject(way, document)
    if rejection is not None:
        found = rejection.context
        assert rejection.code == ("TASK_INPUT_INVALID" if way.name.startswith("task") else "PROTO_INVALID_MESSAGE")
        assert rejection.message == f"{found['path']}: expected {found['expected']}, got {found['received']}"
        assert found["path"].startswith("$")
    elif fault is not None:
        assert exact(way.write(fault)) == exact(document)
    else:
        assert document["status"] in {"COMPLETE", "CONTINUATION"}


def _read_or_reject(way: Way, document):
    try:
        return way.read(document), None
    except InvalidError as error:
        return None, error.fault


def _broken(document):
    """The document with one of its fields, or one a level below, gone or holding something else."""
    inner = [name for name, value in document.items() if isinstance(value, dict) and value]
    here = st.sampled_from(sorted(document)).flatmap(
        lambda name: st.one_of(
            st.just({key: value for key, value in document.items() if key != name}),
            json_values.map(lambda value: {**document, name: value}),
        )
    )
    if not inner:
        return here
    deeper = st.sampled_from(inner).flatmap(
        lambda name: _broken(document[name]).map(lambda value: {**document, name: value})
    )
    return here | deeper


@every_view
@quick
@given(data=st.data(), fault=faults)
def test_visible_fields_that_disagree_with_the_fault_that_travels_along_survive(way: Way, data, fault: Fault):
    document = data.draw(way.documents)
    document.pop("holdfast", None)
    carrying = {**document, "holdfast": way.write(fault, with_fault=True)["holdfast"]}
    heard = way.read(carrying)
    assert heard.code == fault.code
    assert exact(way.write(heard)) == exact(document)


@every_view
@quick
@given(fault=faults, forged=st.dictionaries(st.just("put") | st.just("drop") | st.just("within"), extras | json_values))
def test_forged_notes_never_break_a_view(way: Way, fault: Fault, forged):
    notes = dict.fromkeys(("connection_error", "error", "tool_error", "http", "hook", "category", "classed"), forged)
    bent = {"put": {"payload": 5, "notes": 5, "error": 5, "type": 5}}
    notes |= {"task": bent, "result": bent, "response": bent}
    fault = msgspec.structs.replace(fault, context={"said": notes})
    assert way.read(way.write(fault, with_fault=True)) == fault


@every_view
def test_S2_9_wrapping_keeps_class_and_code_in_every_view(way: Way):
    fault = Fault.of("TOOL_FORBIDDEN", "no", context={"tool": "bash", "errors": [{"field": "a", "message": "b"}]})
    plain = way.write(fault)
    for level in range(5):
        fault = fault.wrapped(f"level {level}")
    assert _without_message(way.write(fault)) == _without_message(plain)
    assert fault.message == "level 4: level 3: level 2: level 1: level 0: no"


def _without_message(document):
    if not isinstance(document, dict):
        return document
    return {name: _without_message(value) for name, value in document.items() if name != "message"}


@every_view
@quick
@given(data=st.data())
def test_S2_9_wrapping_a_fault_that_was_read_keeps_the_name_it_came_with(way: Way, data):
    document = data.draw(way.documents)
    wrapped = way.read(document).wrapped("while deploying")
    assert _without_message(way.write(wrapped)) == _without_message(document)
