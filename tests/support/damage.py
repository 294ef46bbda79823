"""Damages bytes as a faulty transport could: each call changes them. Pure; seeded."""

from __future__ import annotations

import random
from collections.abc import Callable


def _flip_bit(data: bytearray, rnd: random.Random) -> None:
    bit = rnd.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8


def _change_bytes(data: bytearray, rnd: random.Random) -> None:
    for _ in range(rnd.randint(1, 8)):
        data[rnd.randrange(len(data))] ^= rnd.randint(1, 255)


def _fill_run(data: bytearray, rnd: random.Random) -> None:
    """Fill a run of bytes with a value that often breaks arithmetic: zero, or the edges of the integer types."""
    start = rnd.randrange(len(data))
    length = rnd.choice([2, 4, 8, 64])
    run_length = len(data[start : start + length])
    data[start : start + run_length] = bytes([rnd.choice([0, 0xFF, 0x7F, 0x80])]) * run_length


def _shift(data: bytearray, rnd: random.Random) -> None:
    position = rnd.randrange(len(data))
    data[position:] = data[position + 1 :] + data[position : position + 1]


def _truncate(data: bytearray, rnd: random.Random) -> None:
    del data[rnd.randrange(len(data)) :]


def _lengthen(data: bytearray, rnd: random.Random) -> None:
    data += rnd.randbytes(rnd.randint(1, 40))


IN_PLACE: list[Callable[[bytearray, random.Random], None]] = [_flip_bit, _change_bytes, _fill_run, _shift]
ANY = [*IN_PLACE, _truncate, _lengthen]


def damaged(data: bytes, rnd: random.Random, kinds: list[Callable[[bytearray, random.Random], None]]) -> bytearray:
    """Return a damaged copy of `data`. It always differs from `data`."""
    while True:
        copy = bytearray(data)
        rnd.choice(kinds)(copy, rnd)
        if copy != data:
            return copy
