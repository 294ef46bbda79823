"""The stages of quickstart.yaml. Copy this file and change it: a stage is a function of one item.

What a stage receives is read-only and shared with other processes: make a new item, and leave the old one as it is.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

import stagepipe

# The usual mean and deviation of ImageNet's pixels, https://pytorch.org/vision/stable/models.html, folded into one
# multiplication and one addition: (pixel / 255 - mean) / deviation == pixel * SCALE + SHIFT.
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE = (1 / (255 * DEVIATION)).astype(np.float32)[:, None, None]
SHIFT = (-MEAN / DEVIATION).astype(np.float32)[:, None, None]

AREA = (0.25, 1.0)  # share of the image that a crop covers
RATIO = (3 / 4, 4 / 3)  # its width over its height


def decode(item: dict[str, Any]) -> dict[str, Any]:
    """From a JPEG file's bytes to `image`, an array (height, width, 3) of uint8."""
    image = Image.open(io.BytesIO(item["data"])).convert("RGB")
    return {"image": np.asarray(image), "label": item["label"]}


def augment(item: dict[str, Any], size: int) -> dict[str, Any]:
    """A random crop, resized to `size` by `size`, and flipped half of the time."""
    # This generator is seeded by (seed, epoch, stage, item): the same crop whichever worker gets the item.
    rng = stagepipe.context().rng
    image = Image.fromarray(item["image"])
    box = random_box(image.width, image.height, rng)
    # Pillow crops and resizes at once: no pixel outside the box is looked at.
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(image)
    return {**item, "image": pixels[:, ::-1] if rng.integers(2) else pixels}


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a crop of random area, ratio and place."""
    area, ratio = width * height * rng.uniform(*AREA), np.exp(rng.uniform(*np.log(RATIO)))
    crop_width, crop_height = min(width, np.sqrt(area * ratio)), min(height, np.sqrt(area / ratio))
    left, top = rng.uniform(0, width - crop_width), rng.uniform(0, height - crop_height)
    return left, top, left + crop_width, top + crop_height


def normalise(item: dict[str, Any]) -> dict[str, Any]:
    """From (height, width, 3) of uint8 to (3, height, width) of float32 with mean 0 and deviation 1."""
    channels_first = item["image"].transpose(2, 0, 1)
    # Memory that the next process reads as it is: the result is written once and never copied.
    image = stagepipe.empty(channels_first.shape, np.float32)
    np.multiply(channels_first, SCALE, out=image)
    image += SHIFT
    return {**item, "image": image}
