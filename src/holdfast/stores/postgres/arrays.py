"""Arrays in PostgreSQL's binary format. The driver builds them value by value, which costs more than the statement they are for."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTS, FLOATS, TEXTS, BYTES = 1016, 1022, 1009, 1001
"""The types of the arrays: bigint[], float8[], text[], bytea[]."""

_HEAD = Struct("!iiIii")
"""Dimensions, whether there are NULLs, the type of the values, how many there are, the number of the first."""
_SIZE = Struct("!i")


def int_array(values: Sequence[int]) -> bytes:
    count = len(values)
    return _numbers("q", count).pack(
        1, 0, 20, count, 1, *chain.from_iterable(zip(repeat(8, count), values, strict=True))
    )


def float_array(values: Sequence[float]) -> bytes:
    count = len(values)
    return _numbers("d", count).pack(
        1, 0, 701, count, 1, *chain.from_iterable(zip(repeat(8, count), values, strict=True))
    )


@lru_cache(2_048)
def _numbers(kind: str, count: int) -> Struct:
    return Struct("!iiIii" + f"i{kind}" * count)


def text_array(values: Sequence[str]) -> bytes:
    return _array(25, [value.encode() for value in values])


def byte_array(values: Sequence[bytes]) -> bytes:
    return _array(17, values)


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    parts = [_HEAD.pack(1, 0, kind, len(values), 1)]
    for value in values:
        parts += (_SIZE.pack(len(value)), value)
    return b"".join(parts)


def ints_of(array: bytes) -> list[int]:
    """Return the values of a bigint[] without NULLs."""
    # An empty array has no dimension, and no more fields.
    count = _HEAD.unpack_from(array)[3] if len(array) > _HEAD.size else 0
    return [int.from_bytes(array[start : start + 8], signed=True) for start in range(24, 24 + 12 * count, 12)]
