"""The check of what arrives: short digests of a batch, compared between processes. Pure."""

from __future__ import annotations

import zlib
from typing import Any

import torch

FIELDS = ("image", "features")
"""The fields of a batch that can hold its tensor."""


def tensor(batch: dict[str, Any]) -> torch.Tensor:
    """Return the tensor of the batch: float32, one row per sample."""
    values = next(batch[name] for name in FIELDS if name in batch)
    assert isinstance(values, torch.Tensor), f"expected a tensor in the batch, received a {type(values).__name__}"
    assert values.dtype == torch.float32, f"expected a batch of float32, received {values.dtype}"
    return values


def digest(batch: dict[str, Any]) -> str:
    """Return `shape labels first all`: the digests of the labels, of the first element of each row, and of all bytes.

    The models' results are rounded, because the order of the sums in a product may differ between two processes.
    """
    rows = tensor(batch)
    rows = rows.round(decimals=1) if "features" in batch else rows
    shape = "x".join(map(str, rows.shape))
    first = rows.flatten(1)[:, :1].contiguous()
    return f"{shape} {_crc(_listed(batch['label']))} {_crc(first.numpy())} {_crc(rows.contiguous().numpy())}"


def spoiled(batch: dict[str, Any]) -> dict[str, Any]:
    """Corrupt the first element of the batch, for the test of the check."""
    name = next(name for name in FIELDS if name in batch)
    wrong = batch[name].clone()
    wrong.view(-1)[:1] += 1
    return {**batch, name: wrong}


def _listed(labels: Any) -> bytes:
    return repr(labels.tolist() if isinstance(labels, torch.Tensor) else labels).encode()


def _crc(buffer: Any) -> str:
    return f"{zlib.crc32(buffer):08x}"
