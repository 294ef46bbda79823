"""One hop: the sent item, a dict {id, label, image}, and its check; stagepipe's sources and its side as a contestant.

Workers import it, because configs name the sources by dotted path. It uses only stagepipe's public API.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stagepipe

Item = dict[str, Any]
Image = NDArray[np.uint8]

SIZES = {"0B": 0, "1KB": 1024, "64KB": 64 << 10, "1.2MB": 3 * 224 * 224 * 8, "8MB": 8 << 20, "64MB": 64 << 20}
"""Bytes of the image. 1.2 MB is a (1, 3, 224, 224) array of float64. All are multiples of 8, for `touch`."""


def make_image(nbytes: int) -> Image:
    """Create a uint8 image of shape (nbytes,): the same random bytes on both sides."""
    return np.random.default_rng(17).integers(0, 256, nbytes, np.uint8)


def make_item(number: int, image: Any) -> Item:
    """Create item `number`. Its label follows from its number, so that a mix-up shows."""
    return {"id": number, "label": number % 1000, "image": image}


def as_array(image: Any) -> Image:
    """Return the image as an ndarray over the same bytes, also for a torch tensor."""
    return image if isinstance(image, np.ndarray) else np.asarray(image.numpy())


def touch(item: Item) -> None:
    """Read every byte once, eight at a time: NumPy's sum over uint64 runs at the speed of memory."""
    np.sum(as_array(item["image"]).view(np.uint64))


def check(item: Item, expected: Image, number: int, *, filled: bool) -> None:
    """Raise AssertionError unless this is item `number` and its image is right.

    If `filled`, every byte must equal the byte of `expected`. Otherwise only the first byte was written: the lowest
    byte of the number.
    """
    image = as_array(item["image"])
    assert item["id"] == number, f"received item {item['id']}, expected item {number}"
    assert item["label"] == number % 1000, f"item {number} has label {item['label']}, expected {number % 1000}"
    assert image.dtype == np.uint8, f"item {number} has dtype {image.dtype}, expected uint8"
    assert image.shape == expected.shape, f"item {number} has shape {image.shape}, expected {expected.shape}"
    if filled:
        wrong = int(np.count_nonzero(image != expected))
        assert not wrong, f"item {number} has {wrong} of {image.size} bytes wrong"
    elif image.size:
        assert image[0] == number & 0xFF, f"item {number} starts with byte {image[0]}, expected {number & 0xFF}"


def spoiled(receive: Callable[[], Item]) -> Callable[[], Item]:
    """Corrupt one byte of each received item, for the test of the check."""

    def receive_spoiled() -> Item:
        item = receive()
        image = as_array(item["image"]).copy()
        image[:1] ^= 1
        return {**item, "image": image}

    return receive_spoiled


class Copied:
    """Yields the same prepared array every time; the transport copies it."""

    def __init__(self, nbytes: int) -> None:
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        for number in count():
            yield make_item(number, self._image)


class HeaderOnly:
    """Yields a new array in the outgoing shared memory for each item, and writes only its first byte."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Yield items without end. No reference to a yielded array remains, so its memory is sent without a copy."""
        for number in count():
            yield make_item(number, _empty_image(self._nbytes, number))


class Filled:
    """Yields a new array in the outgoing shared memory for each item, and copies a prepared one into it."""

    def __init__(self, nbytes: int) -> None:
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        for number in count():
            yield make_item(number, _filled_image(self._image))


DICTS = {"two numbers": {}, "two numbers, array of 0 B": {"image": np.zeros(0, np.uint8)}}
"""The additional content of the small dicts, by kind."""


class Dicts:
    """Yields small dicts."""

    def __init__(self, kind: str, count: int = sys.maxsize) -> None:
        self._rest: dict[str, Any] = DICTS[kind]
        self._count = count

    def __iter__(self) -> Iterator[Item]:
        for number in range(self._count):
            yield {"id": number, "label": number % 1000, **self._rest}


class PassOnBesideTorch:
    """Imports torch, optionally uses it, and returns its items unchanged."""

    def __init__(self, *, used: bool) -> None:
        import torch

        if used:
            torch.zeros(1)

    def __call__(self, item: Item) -> Item:
        return item


def _empty_image(nbytes: int, number: int) -> Image:
    image: Image = stagepipe.empty(nbytes, np.uint8)
    image[:1] = number & 0xFF
    return image


def _filled_image(source: Image) -> Image:
    image: Image = stagepipe.empty(source.shape, np.uint8)
    np.copyto(image, source)
    return image


# ---------------------------------------------------------------------------------------------- the contestant

HEADER_ONLY = "stagepipe header only"
CONFIGS: dict[str, tuple[str, bool]] = {
    "stagepipe copied": ("Copied", False),
    "stagepipe filled": ("Filled", False),
    "stagepipe passed on": ("Filled", True),
    HEADER_ONLY: ("HeaderOnly", False),
}
"""The source of each contestant, and whether a middle stage passes its items on."""


def config(name: str, nbytes: int) -> dict[str, Any]:
    """Return the pipeline's config, with only the required keys."""
    source, has_stage = CONFIGS[name]
    document: dict[str, Any] = {
        "name": name.replace(" ", "-"),
        "source": {"uses": f"benchmarks.hop.{source}", "with": {"nbytes": nbytes}},
    }
    if has_stage:
        document["stages"] = [{"name": "pass_on", "uses": "benchmarks.common.stages.pass_on"}]
    return document


_LARGE_BYTES = 256 << 10
_SMALL_ITEM_WINDOW = 512
_LARGE_ITEM_WINDOW = 16
"""The small and large items that stagepipe has in flight by default: its window, and the content of a packet pipe."""


class PipelinePeer:
    """A pipeline that runs forever. The caller takes items at any time; backpressure stops the producer in between."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.filled = name, name != HEADER_ONLY
        self.max_backlog = _SMALL_ITEM_WINDOW + 20 if nbytes < _LARGE_BYTES else _LARGE_ITEM_WINDOW + 4
        self.hops: list[dict[str, Any]] = []
        self.timing_ns_per_hop = 0
        self._pipeline = stagepipe.Pipeline(config(name, nbytes))
        self._pipeline.start()
        self._items: Iterator[Item] = iter(self._pipeline)
        self.receive: Callable[[], Item] = self._items.__next__

    def close(self) -> None:
        """Close the pipeline and keep the report's figures of the hops in `hops`."""
        del self.receive
        self._items = iter(())
        self._pipeline.close()
        report = self._pipeline.report()
        self.timing_ns_per_hop = report.run.timing_overhead.ns_per_hop
        for hop in report.hops:
            phases = {name: getattr(hop.phases, name) for name in hop.phases.__struct_fields__}
            self.hops.append(
                {
                    "from": hop.source,
                    "to": hop.target,
                    "cost_ns": {"p50": hop.cost_ns.p50, "mean": hop.cost_ns.mean},
                    "phases_ns": {phase: {"p50": value.p50, "mean": value.mean} for phase, value in phases.items()},
                }
            )
