"""What can happen to bytes on their way: each kind of damage changes them for certain. Pure, by a seeded draw."""

from __future__ import annotations

import random
from collections.abc import Callable


def _flip_bit(data: bytearray, rnd: random.Random) -> None:
    at = rnd.randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8


def _other_bytes(data: bytearray, rnd: random.Random) -> None:
    for _ in range(rnd.randint(1, 8)):
        data[rnd.randrange(len(data))] ^= rnd.randint(1, 255)


def _one_value(data: bytearray, rnd: random.Random) -> None:
    """A run of bytes becomes one of those values that break sums: nothing, or the most."""
    at, length = rnd.randrange(len(data)), rnd.choice([2, 4, 8, 64])
    room = len(data[at : at + length])
    data[at : at + room] = bytes([rnd.choice([0, 0xFF, 0x7F, 0x80])]) * room


def _shift(data: bytearray, rnd: random.Random) -> None:
    at = rnd.randrange(len(data))
    data[at:] = data[at + 1 :] + data[at : at + 1]


def _cut(data: bytearray, rnd: random.Random) -> None:
    del data[rnd.randrange(len(data)) :]


def _lengthen(data: bytearray, rnd: random.Random) -> None:
    data += rnd.randbytes(rnd.randint(1, 40))


IN_PLACE: list[Callable[[bytearray, random.Random], None]] = [_flip_bit, _other_bytes, _one_value, _shift]
ANY = [*IN_PLACE, _cut, _lengthen]


def damaged(data: bytes, rnd: random.Random, kinds: list[Callable[[bytearray, random.Random], None]]) -> bytearray:
    """A copy of `data` that differs from it."""
    while True:
        copy = bytearray(data)
        rnd.choice(kinds)(copy, rnd)
        if copy != data:
            return copy
