"""Builds the pipeline of thumbnails.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python examples/thumbnails/build_thumbnails.py
"""

from stagepipe import defer, from_source, sinks, sources
from stagepipe.stages import image

IMAGES = "data/images"
OUT = "runs/thumbnails"
SIZE = 96

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", read=True))
    .map_field("data", defer(image.Decode), name="decode")
    .map_field("data", defer(image.Resize, SIZE, fit="contain", interpolation="lanczos"), name="resize", fuse=True)
    .sink(defer(sinks.images, OUT, field="data", quality=85, overwrite=True))  # encodes in its own process
    .with_options(name="thumbnails")
)

if __name__ == "__main__":
    builder.run().show()
