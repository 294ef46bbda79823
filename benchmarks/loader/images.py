"""The quickstart's pipeline, unchanged and with all transforms in one process."""

from __future__ import annotations

from pathlib import Path

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"

EDITS: dict[str, tuple[str, ...]] = {
    "stagepipe": (),
    "stagepipe fused x 2": ("stages.augment.fuse=true", "stages.decode.workers=2"),
}
"""What each contestant changes in the quickstart's config: nothing; or all transforms in one process with two workers,
as in DataLoader."""


def overrides(name: str, images: str, side: int, batch: int) -> list[str]:
    """Return the contestant's overrides of the quickstart's config."""
    return [f"vars.images={images}", f"vars.size={side}", f"stages.batch.with.size={batch}", *EDITS[name]]
