"""The quickstart's pipeline, as it stands and with all transforms in one process."""

from __future__ import annotations

from pathlib import Path

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"

EDITS: dict[str, tuple[str, ...]] = {
    "stagepipe": (),
    "stagepipe fused x 2": ("stages.augment.fuse=true", "stages.decode.workers=2"),
}
"""What each contestant changes in the quickstart's config: nothing; or all transforms in a process, which there is
twice, as DataLoader does it."""


def overrides(name: str, images: str, side: int, batch: int) -> list[str]:
    """The contestant's edits of the quickstart's config."""
    return [f"vars.images={images}", f"vars.size={side}", f"stages.batch.with.size={batch}", *EDITS[name]]
