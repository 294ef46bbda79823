"""Builds the pipeline of quickstart.yaml in Python.

From the root of the repository:

    python scripts/make_images.py
    python configs/build_quickstart.py
"""

from functools import partial

from quickstart_ops import augment, decode, normalise

from stagepipe import defer, from_source, sources

IMAGES = "data/images"
SIZE = 224

builder = (
    from_source(defer(sources.files, f"{IMAGES}/**/*.jpg", shuffle=True, read=True, labels="folder"))
    .map(decode)
    .map(partial(augment, size=SIZE))
    .map(normalise, fuse=True)  # costs about as much as a hop, so it runs in augment's process
    .batch(64)
    .with_options(name="quickstart", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
