"""The stages of quickstart.yaml. Copy this file and change it: a stage is a function of one item.

The input of a stage is read-only and shared with other processes: make a new item and leave the old one unchanged.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

import stagepipe

# The usual mean and standard deviation of ImageNet's pixels, https://pytorch.org/vision/stable/models.html, as one
# multiplication and one addition: (pixel / 255 - mean) / deviation == pixel * SCALE + SHIFT.
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE = (1 / (255 * DEVIATION)).astype(np.float32)[:, None, None]
SHIFT = (-MEAN / DEVIATION).astype(np.float32)[:, None, None]

AREA = (0.25, 1.0)  # share of the image that a crop covers
RATIO = (3 / 4, 4 / 3)  # its width over its height


def decode(item: dict[str, Any]) -> dict[str, Any]:
    """Decode the bytes of a JPEG file to `image`, a uint8 array of shape (height, width, 3)."""
    image = Image.open(io.BytesIO(item["data"])).convert("RGB")
    return {"image": np.asarray(image), "label": item["label"]}


def augment(item: dict[str, Any], size: int) -> dict[str, Any]:
    """Crop at random, resize to `size` by `size`, and flip half of the time."""
    # This generator is seeded from (seed, epoch, stage, item): every worker makes the same crop of an item.
    rng = stagepipe.context().rng
    image = Image.fromarray(item["image"])
    box = random_box(image.width, image.height, rng)
    # Pillow crops and resizes at once: it reads no pixel outside the box.
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(image)
    return {**item, "image": pixels[:, ::-1] if rng.integers(2) else pixels}


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a crop with random area, ratio and position."""
    area, ratio = width * height * rng.uniform(*AREA), np.exp(rng.uniform(*np.log(RATIO)))
    crop_width, crop_height = min(width, np.sqrt(area * ratio)), min(height, np.sqrt(area / ratio))
    left, top = rng.uniform(0, width - crop_width), rng.uniform(0, height - crop_height)
    return left, top, left + crop_width, top + crop_height


def normalise(item: dict[str, Any]) -> dict[str, Any]:
    """Convert uint8 (height, width, 3) to float32 (3, height, width) with mean 0 and standard deviation 1."""
    channels_first = item["image"].transpose(2, 0, 1)
    # Shared memory that the next process reads in place: the result is written once and never copied.
    image = stagepipe.empty(channels_first.shape, np.float32)
    np.multiply(channels_first, SCALE, out=image)
    image += SHIFT
    return {**item, "image": image}
