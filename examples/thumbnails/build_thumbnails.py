"""Builds the pipeline of thumbnails.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python examples/thumbnails/build_thumbnails.py
"""

from thumbnail_ops import JpegFolder

from stagepipe import defer, from_source, sources
from stagepipe.stages import image

IMAGES = "data/images"
OUT = "runs/thumbnails"
SIZE = 96

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", read=True, labels="folder"))
    .map_field("data", defer(image.Decode), name="decode", workers=2)
    .map_field("data", defer(image.Resize, SIZE, fit="contain", interpolation="lanczos"), name="resize")
    .map_field("data", defer(image.EncodeJpeg, quality=85), name="encode", fuse=True)
    .sink(defer(JpegFolder, OUT))
    .with_options(name="thumbnails")
)

if __name__ == "__main__":
    builder.run().show()
