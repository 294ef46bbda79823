"""The quickstart's pipeline, and the same functions as a map-style dataset, which is a DataLoader's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from loader_.job import SEED
from loader_.samples import Place
from stagepipe.core.context import Context, current
from stagepipe.sources import files

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"

EDITS: dict[str, tuple[str, ...]] = {
    "stagepipe": (),
    "stagepipe fused, 2 workers": ("stages.augment.fuse=true", "stages.decode.workers=2"),
}
"""What each contestant changes in the quickstart's config: nothing; or all transforms in a process, which there is
twice, as DataLoader does it."""


def overrides(name: str, images: str, side: int, batch: int) -> list[str]:
    """The contestant's edits of the quickstart's config."""
    return [f"vars.images={images}", f"vars.size={side}", f"stages.batch.with.size={batch}", *EDITS[name]]


class Images(Dataset[dict[str, Any]]):
    """File to sample by the quickstart's own functions, with the same files, order and draws as its pipeline has."""

    def __init__(self, images: str, side: int) -> None:
        """Find the files; `quickstart_ops` is on the import path."""
        self._files, self._side = files(f"{images}/**/*.jpg", shuffle=True, read=True, labels="folder"), side

    def __getitem__(self, place: Place) -> dict[str, Any]:
        """The sample at a position of an epoch."""
        epoch, position = place
        ops = importlib.import_module("quickstart_ops")
        self._files.begin(epoch, SEED)
        # What `stagepipe.context()` answers inside the pipeline: the same crop for the same item of the same epoch.
        current.context = Context(stage="augment", worker=0, epoch=epoch, item=(position,), seed=SEED)
        sample: dict[str, Any] = ops.normalise(ops.augment(ops.decode(self._files[position]), self._side))
        return sample
