"""The check that what arrives is right: short digests of a batch, compared from process to process. Pure."""

from __future__ import annotations

import zlib
from typing import Any

import torch

FIELDS = ("image", "features")
"""Where a batch has its tensor."""


def tensor(batch: dict[str, Any]) -> torch.Tensor:
    """The batch's tensor, float32 with a row a sample."""
    found = next(batch[name] for name in FIELDS if name in batch)
    assert isinstance(found, torch.Tensor), f"a batch came with a {type(found).__name__}, not a tensor"
    assert found.dtype == torch.float32, f"a batch came as {found.dtype}"
    return found


def digest(batch: dict[str, Any]) -> str:
    """`shape labels first whole`: of the labels, of each row's first element, and of all bytes.

    The models' results are rounded: the order in which a product's sums are taken may differ between two processes.
    """
    rows = tensor(batch)
    rows = rows.round(decimals=1) if "features" in batch else rows
    shape = "x".join(map(str, rows.shape))
    first = rows.flatten(1)[:, :1].contiguous()
    return f"{shape} {_crc(_listed(batch['label']))} {_crc(first.numpy())} {_crc(rows.contiguous().numpy())}"


def spoiled(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with its first element wrong: what the check is for, in the check's own test."""
    name = next(name for name in FIELDS if name in batch)
    wrong = batch[name].clone()
    wrong.view(-1)[:1] += 1
    return {**batch, name: wrong}


def _listed(labels: Any) -> bytes:
    return repr(labels.tolist() if isinstance(labels, torch.Tensor) else labels).encode()


def _crc(buffer: Any) -> str:
    return f"{zlib.crc32(buffer):08x}"
