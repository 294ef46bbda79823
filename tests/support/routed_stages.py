"""Stages and predicates of routed pipelines. Imported by worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe

ARRAY_BYTES = 100_000


def make(number: int) -> dict[str, Any]:
    """An item with a kind, a nested size and an array in shared memory. Every fifth has a `flag`."""
    item = {"id": number, "kind": ("text", "image", "photo")[number % 3], "meta": {"width": number * 10}}
    if number % 5 == 0:
        item["flag"] = True
    return {**item, "data": np.full(ARRAY_BYTES, number, np.uint8)}


def small(number: int) -> dict[str, Any]:
    return {"id": number, "kind": ("text", "image", "photo")[number % 3], "log": []}


def mark(item: dict[str, Any], name: str = "mark") -> dict[str, Any]:
    return {**item, "log": [*item.get("log", []), name]}


def mark_all(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Marks each with the numbers of its batch."""
    ids = [item["id"] for item in items]
    return [mark(item, f"batch of {len(ids)}") if len(ids) > 1 else mark(item, "alone") for item in items]


def kinds_of_batch(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "kinds": sorted({other["kind"] for other in items})} for item in items]


def add_one_in_place(item: dict[str, Any]) -> dict[str, Any]:
    item["data"] += 1
    return item


def total(item: dict[str, Any]) -> dict[str, Any]:
    """The item with the sum of its array in its place."""
    return {**item, "data": int(item["data"].sum())}


def split(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(item["id"] % 3):
        yield {**item, "part": part}


def draw(item: dict[str, Any]) -> dict[str, Any]:
    own = int(stagepipe.context().rng.integers(1000))
    return {**item, "draws": [own, random.random(), float(np.random.random())]}  # noqa: NPY002 - the global one is meant


def is_photo(item: dict[str, Any]) -> bool:
    return bool(item["kind"] == "photo")


def gives_none_for_photos(item: dict[str, Any]) -> bool | None:
    return None if item["kind"] == "photo" else True


def gives_length(item: dict[str, Any]) -> int:
    return len(item["kind"]) - len("photo")


class Coin:
    """Draws from all kinds of generators whether an item matches, and leaves the draws of a match in its log."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        self.own = random.Random()

    def __call__(self, item: dict[str, Any]) -> bool:
        draws = (random.random(), self.own.random(), float(stagepipe.context().rng.random()))
        return sum(draws) / 3 < self.share


def first_half(item: dict[str, Any]) -> bool:
    return random.random() < 0.5


def fails_once(item: dict[str, Any], folder: str) -> bool:
    """Raises the first time that it sees an item with an odd number."""
    record = Path(folder) / str(item["id"])
    if item["id"] % 2 and not record.exists():
        record.touch()
        raise OSError("not there yet")
    return item["id"] % 4 == 1


def kills_worker(item: dict[str, Any], folder: str) -> bool:
    """Kills its worker the first time that it sees item 7."""
    import os
    import signal

    record = Path(folder) / "killed"
    if item["id"] == 7 and not record.exists():
        record.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item["kind"] == "image"
