"""A pipeline from functions of this script, without a YAML file, another module, or `if __name__ == "__main__":`.

    python examples/script.py

Requires the `demo` extra, for the photographs of scikit-image.
"""

from typing import Any

import numpy as np
from skimage import data
from skimage.color import rgb2gray
from skimage.filters import sobel

import stagepipe
from stagepipe import defer, from_source

PHOTOS = ("astronaut", "chelsea", "coffee")
SIDE = 128  # of a crop, in pixels
MIN_EDGE = 0.01  # mean edge below which a crop is nearly empty


class Photos:
    """A stage as a class: each worker instantiates it once, which loads the photographs, and calls it once per item."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.photos = [getattr(data, name)() for name in names]

    def __call__(self, number: int) -> dict[str, Any]:
        """Return a random crop of one photograph."""
        which = number % len(self.photos)
        photo = self.photos[which]
        # Seeded from (seed, epoch, stage, item), so the crop is the same with any number of workers.
        rng = stagepipe.context().rng
        top, left = (int(rng.integers(length - SIDE)) for length in photo.shape[:2])
        return {"photo": which, "image": photo[top : top + SIDE, left : left + SIDE]}


def edges(item: dict[str, Any]) -> dict[str, Any]:
    """A stage as a function. Its input is read-only, so it makes a new item."""
    return {**item, "edges": sobel(rgb2gray(item["image"])).astype(np.float32)}


def has_edges(item: dict[str, Any]) -> bool:
    """Whether a crop is not nearly empty."""
    return bool(item["edges"].mean() > MIN_EDGE)


builder = (
    from_source(range(400))
    .map(defer(Photos, PHOTOS))
    .map(edges, workers=2)
    .filter(has_edges, fuse=True)
    .batch(50)
    .with_options(name="edges", seed=17)
)

with builder.open() as pipeline:
    sums, counts = np.zeros(len(PHOTOS)), np.zeros(len(PHOTOS))
    for batch in pipeline:
        np.add.at(sums, batch["photo"], batch["edges"].mean(axis=(1, 2)))
        np.add.at(counts, batch["photo"], 1)

for name, mean, count in zip(PHOTOS, sums / counts, counts, strict=True):
    print(f"{name}: {count:.0f} crops, mean edge {mean:.3f}")
report = pipeline.report()
for hop in report.hops:
    print(f"{hop.source} -> {hop.target}: {hop.cost_ns.p50 / 1000:.0f} us a message")
print(report.verdict.sentence)
