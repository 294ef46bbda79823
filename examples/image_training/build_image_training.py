"""Builds the pipeline of image_training.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python examples/image_training/build_image_training.py
"""

from torchvision.transforms import v2

from stagepipe import defer, from_source, sources
from stagepipe.stages import image

IMAGES = "data/images"
SIZE = 64

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", shuffle=True, read=True, labels="folder"))
    .map_field("data", defer(image.Decode), name="decode", workers=2)  # the image replaces the bytes
    .map_field(
        "data",
        defer(v2.Compose, [defer(v2.RandomResizedCrop, SIZE), defer(v2.RandomHorizontalFlip)]),
        as_="pil",
        name="augment",
        threads=1,
    )
    .map_field(
        "data",
        defer(image.Normalize, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        name="normalize",
        fuse=True,
    )
    .batch(16, drop_last=True)
    .with_options(name="image_training", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
