"""Builds the pipeline of torchvision.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python configs/build_torchvision.py
"""

import torch
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

from stagepipe import defer, from_source, sources

IMAGES = "data/images"
SIZE = 224

# Each worker builds these, as often as the config says `defer`. An instance, `v2.Compose([...])`, works too, but
# `builder.to_yaml()` cannot write it.
transforms = [
    defer(v2.RandomResizedCrop, SIZE),
    defer(v2.RandomHorizontalFlip),
    defer(v2.ToDtype, torch.float32, scale=True),
    defer(v2.Normalize, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
]

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", shuffle=True, labels="folder"))
    .map_field("path", pil_loader, name="decode", threads=1)  # the image replaces the path
    .map_field("path", v2.functional.to_image, fuse=True)  # a tensor travels in shared memory; a PIL image does not
    .map_field("path", defer(v2.Compose, transforms), name="augment", threads=1)
    .batch(64)
    .with_options(name="torchvision", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
