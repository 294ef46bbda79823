"""Folders of small photographs, cut from those that scikit-image brings along."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

_CLASSES = ("astronaut", "chelsea", "coffee", "hubble_deep_field", "retina", "rocket")


def make_image_folder(folder: Path) -> None:
    """Write train/CLASS/*.jpg and val/CLASS/*.jpg: 144 and 12 photographs of 256 x 256."""
    photographs = _load_photographs()
    for part, count in (("train", 24), ("val", 2)):
        for name, photograph in zip(_CLASSES, photographs, strict=True):
            crops = _cut(photograph, count, 256, f"{part} {name}")
            (folder / part / name).mkdir(parents=True)
            for number, crop in enumerate(crops):
                crop.save(folder / part / name / f"{number:03}.jpg", quality=90)


def make_vit_folder(folder: Path) -> None:
    """Write the same photographs and, in model/, a small vision transformer with random weights."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    make_image_folder(folder)
    torch.manual_seed(1)
    config = ViTConfig(
        image_size=64,
        patch_size=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=len(_CLASSES),
    )
    ViTForImageClassification(config).save_pretrained(folder / "model")
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder / "model")


def make_coco_folder(folder: Path) -> None:
    """Write a data set in COCO's layout: 8 and 2 photographs of 320 x 240 or 240 x 320, with two boxes each."""
    photographs = _load_photographs()
    draw = random.Random(5)
    (folder / "annotations").mkdir()
    for part, count in (("train", 8), ("val", 2)):
        (folder / f"{part}2017").mkdir()
        images, annotations = [], []
        for number in range(1, count + 1):
            crop = next(_cut(photographs[number % len(photographs)], 1, 320, f"{part} {number}"))
            width, height = (320, 240) if number % 2 else (240, 320)
            crop.crop((0, 0, width, height)).save(folder / f"{part}2017" / f"{number:012}.jpg")
            images.append({"id": number, "file_name": f"{number:012}.jpg", "width": width, "height": height})
            for _ in range(2):
                left, top, side = draw.randrange(100), draw.randrange(100), draw.randrange(40, 120)
                right, bottom = left + side, top + side
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": number % 3 + 1,
                        "bbox": [left, top, side, side],
                        "area": side * side,
                        "iscrowd": 0,
                        "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                    }
                )
        categories = [{"id": number, "name": str(number)} for number in (1, 2, 3)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))


def _load_photographs() -> list[Image.Image]:
    (package,) = find_spec("skimage").submodule_search_locations  # to import it takes seconds
    return [Image.open(next(Path(package, "data").glob(f"{name}.*"))).convert("RGB") for name in _CLASSES]


def _cut(photograph: Image.Image, count: int, side: int, seed: str) -> Iterator[Image.Image]:
    draw = random.Random(seed)
    scaled = photograph.resize((int(photograph.width * 1.5), int(photograph.height * 1.5)))
    for _ in range(count):
        left = draw.randrange(scaled.width - side)
        top = draw.randrange(scaled.height - side)
        yield scaled.crop((left, top, left + side, top + side))
