"""Results as values."""

from __future__ import annotations

import copy
import pickle

import pytest

from holdfast.faults import Attempt, CircuitOpenError, Err, Fault, HoldfastError, Ok


def test_ok_matches_and_unwraps():
    match Ok([1, 2], via="openai", attempts=(Attempt(number=1),)):
        case Ok(value=[first, *_]) as result:
            assert first == 1
    assert result.ok is True
    assert result.unwrap() == [1, 2]
    assert (result.via, len(result.attempts)) == ("openai", 1)


def test_ok_matches_by_position_and_err_does_not_match_it():
    match Ok("yes"):
        case Err():
            pytest.fail("an Ok is no Err")
        case Ok(value):
            assert value == "yes"


def test_err_matches_and_tells_its_attempts():
    history = (Attempt(number=1, code="PROVIDER_TIMEOUT"),)
    match Err(Fault.of("PROVIDER_TIMEOUT").with_attempts(history)):
        case Ok():
            pytest.fail("an Err is no Ok")
        case Err(fault=Fault(code="PROVIDER_TIMEOUT")) as result:
            assert result.ok is False
            assert result.attempts == history


def test_unwrap_raises_the_very_exception_with_its_cause_untouched():
    try:
        raise KeyError("plan") from OSError("disk")
    except KeyError as error:
        original = error
    with pytest.raises(KeyError) as caught:
        Err(Fault.of("SYS_PROGRAMMING_ERROR"), original).unwrap()
    assert caught.value is original
    assert isinstance(original.__cause__, OSError)


def test_unwrap_raises_a_carrier_where_there_was_no_exception():
    fault = Fault.of("SESS_CLOSED", context={"session_id": "s"})
    with pytest.raises(HoldfastError) as caught:
        Err(fault).unwrap()
    assert caught.value.fault is fault


def test_unwrap_passes_cancellation_on():
    stop = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught:
        Err(Fault.of("SYS_CANCELLED"), stop).unwrap()
    assert caught.value is stop


def test_results_are_compared_by_what_they_say():
    assert Ok(1) == Ok(1) != Ok(2)
    assert Ok(1) != Ok(1, via="cache")
    assert hash(Ok(1)) == hash(Ok(1))
    fault = Fault.of("AUTH_FAILED")
    assert Err(fault, ValueError()) == Err(fault)
    assert hash(Err(fault)) == hash(Err(Fault.of("AUTH_FAILED")))
    assert Err(fault) != Err(Fault.of("AUTH_FORBIDDEN"))
    assert Ok(1) != Err(fault)
    assert Ok(None) is not None


def test_a_result_shows_what_it_is():
    assert repr(Ok(3)) == "Ok(3, via='primary')"
    error = CircuitOpenError.because("open")
    assert repr(Err(error.fault, error)) == "Err(CIRCUIT_OPEN: 'open')"


RESULTS = [Ok(1, via="cache", attempts=(Attempt(number=1),)), Err(Fault.of("AUTH_FAILED"), ValueError("no"))]
results = pytest.mark.parametrize("result", RESULTS, ids=["Ok", "Err"])


@results
@pytest.mark.parametrize("name", ["value", "via", "attempts", "fault", "error", "ok", "anything"])
def test_a_result_cannot_be_changed(result, name):
    before = repr(result)
    with pytest.raises(AttributeError):
        setattr(result, name, 2)
    with pytest.raises(AttributeError):
        delattr(result, name)
    assert repr(result) == before


def test_a_result_is_as_hashable_as_what_it_holds():
    assert len({Ok((1, 2)), Ok((1, 2)), Ok((1, 2), via="cache")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ok([1]))
    fault = Fault.of("SESS_NOT_FOUND", context={"session_id": "s"})
    assert len({Err(fault), Err(fault, ValueError())}) == 1


def test_how_it_was_reached_must_be_named():
    with pytest.raises(TypeError):
        Ok(1, "cache")
    with pytest.raises(TypeError):
        Ok()
    assert Ok.__match_args__ == ("value",)
    match Err(Fault.of("AUTH_FAILED"), ValueError("no")):
        case Err(fault, error):
            assert (fault.code, str(error)) == ("AUTH_FAILED", "no")


@results
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))])
def test_a_result_can_be_copied_and_sent(result, copied):
    twin = copied(result)
    assert twin == result
    assert twin.attempts == result.attempts
    assert repr(getattr(twin, "error", None)) == repr(getattr(result, "error", None))


def test_a_result_shows_no_secret():
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    assert key not in repr(Err(Fault.of("AUTH_FAILED", f"bad key {key}")))
