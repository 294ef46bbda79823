"""Builds the pipeline of albumentations.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python configs/build_albumentations.py
"""

from functools import partial

import albumentations as A  # noqa: N812 - as everybody writes it
import cv2

from stagepipe import defer, from_source, sources

IMAGES = "data/images"
SIZE = 224

transforms = [
    defer(A.RandomResizedCrop, size=[SIZE, SIZE]),
    defer(A.HorizontalFlip, p=0.5),
    defer(A.RandomBrightnessContrast, p=0.2),
    defer(A.Normalize),
]

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", shuffle=True, read=True, labels="folder"))
    .map_field({"buf": "data"}, partial(cv2.imdecode, flags=cv2.IMREAD_COLOR_RGB), as_="numpy", name="decode")
    .map_field(
        {"image": "data"},  # compose(image=item["data"])["image"] replaces `data`
        defer(A.Compose, transforms),
        name="augment",
        env={"NO_ALBUMENTATIONS_UPDATE": "1"},  # otherwise it asks the network for a newer release
    )
    .batch(64)
    .with_options(name="albumentations", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
