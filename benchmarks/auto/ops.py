"""The stages of the pipelines: functions of one item, and models."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

import stagepipe


def decode(item: dict[str, Any]) -> dict[str, Any]:
    """Decode the bytes of a JPEG file to `image`, an array of (height, width, 3)."""
    return {"image": np.asarray(Image.open(io.BytesIO(item["data"])).convert("RGB"))}


def resize(item: dict[str, Any], size: int) -> dict[str, Any]:
    """Resize the image to `size` by `size`."""
    image = Image.fromarray(item["image"]).resize((size, size), Image.Resampling.BILINEAR)
    return {"image": np.asarray(image)}


def to_float32(item: dict[str, Any]) -> dict[str, Any]:
    """Convert uint8 (height, width, 3) to float32 (3, height, width) from 0 to 1, in shared memory."""
    image = stagepipe.empty((3, *item["image"].shape[:2]), np.float32)
    np.multiply(item["image"].transpose(2, 0, 1), np.float32(1 / 255), out=image)
    return {"image": image}


class TinyTensors:
    """A dataset of images as small as CIFAR's, already in memory."""

    def __init__(self, count: int) -> None:
        self._images = torch.zeros((count, 3, 32, 32), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._images[index], index % 10


class Model:
    """A `torch.nn.Linear` on the CPU, of about `weight_bytes`."""

    def __init__(self, weight_bytes: int) -> None:
        """Fill all weights, so that each process that builds a model has its pages."""
        width = int((weight_bytes / 4) ** 0.5)
        self._layer = (
            torch.nn.Linear(width, width, device="meta").to_empty(device="cpu").requires_grad_(requires_grad=False)
        )
        self._layer.weight.fill_(1 / width)
        self._layer.bias.fill_(0.0)
        self._input = torch.ones(width)

    def __call__(self, number: int) -> int:
        """Run the model; the item itself passes on."""
        self._layer(self._input)
        return number
