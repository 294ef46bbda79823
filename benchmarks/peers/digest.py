"""Digests of what a contestant delivers, to compare with those of the plain loop. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.jobs import Item

PADDED = "tokens"
"""The field that a batch pads with 0. How far depends on the batch's other samples, so it is cut from a sample."""


def digest_batches(batches: Iterable[Item]) -> dict[str, int]:
    """Return the number of samples, and three CRC-32.

    `forms` is of the names, dtypes and shapes of each sample. `samples` has their bytes too. Both are of the samples
    sorted, whatever their order. `batches` is of whole batches (names, dtypes, shapes, bytes) in order.
    """
    forms, samples, in_order = [], [], 0
    for batch in batches:
        arrays = {key: np.asarray(value) for key, value in sorted(batch.items()) if not key.startswith("_")}
        in_order = _digest(arrays, in_order)
        for sample in split_batch(arrays):
            forms.append(zlib.crc32(_describe(sample)))
            samples.append(_digest(sample))
    return {
        "inspected": len(samples),
        "forms": zlib.crc32(np.array(sorted(forms), np.int64).tobytes()),
        "samples": zlib.crc32(np.array(sorted(samples), np.int64).tobytes()),
        "batches": in_order,
    }


def find_difference(own: dict[str, int], reference: dict[str, int], *, is_ordered: bool, own_pixels: bool) -> str:
    """Return what differs from the plain loop's, or ""."""
    meanings = {"inspected": "another number of samples", "forms": "other names, dtypes or shapes"}
    if not own_pixels:
        meanings["samples"] = "other samples"
        if is_ordered:
            meanings["batches"] = "another order, or other batches"
    return next((meaning for key, meaning in meanings.items() if own[key] != reference[key]), "")


def split_batch(arrays: dict[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the samples of a batch, or a single item as it is. Padding is cut."""
    if not arrays["index"].ndim:
        yield arrays
        return
    for row in zip(*arrays.values(), strict=True):
        sample = {key: np.asarray(value) for key, value in zip(arrays, row, strict=True)}
        if PADDED in sample:
            sample[PADDED] = np.trim_zeros(sample[PADDED], "b")
        yield sample


def _digest(arrays: dict[str, NDArray[Any]], begin: int = 0) -> int:
    digest = zlib.crc32(_describe(arrays), begin)
    for array in arrays.values():
        digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return digest


def _describe(arrays: dict[str, NDArray[Any]]) -> bytes:
    return repr([(key, array.dtype.str, array.shape) for key, array in arrays.items()]).encode()
