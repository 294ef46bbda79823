"""The contestants of each part. Pure: the process that starts the contestants does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFERENCE = "reference"
"""Not a contestant: the first epoch made in one process without a transport. All others are compared with it."""
COLLATE, QUICKSTART, MODELS = PARTS = ("collate", "quickstart", "models")

BATCH, COPIED = "stagepipe Batch", "stagepipe Batch from copies"
IN_PLACE, FILLED = "stagepipe in place", "stagepipe in place filled"
PLAIN, FUSED = "stagepipe", "stagepipe fused x 2"
WAYS = ("stagepipe 1 way", "stagepipe 2 ways", "stagepipe 3 ways")
FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED = (
    "DataLoader 3 forked",
    "DataLoader 3 forked made before",
    "DataLoader 3 spawned handed over",
)
SPAWNED = ("DataLoader 1 spawned", "DataLoader 2 spawned", "DataLoader 3 spawned")


@dataclass(frozen=True)
class Workers:
    """The settings of a DataLoader. Its workers are persistent; everything else keeps its default."""

    count: int
    prefetch: int = 2
    context: Literal["fork", "spawn"] = "fork"


DATALOADERS: dict[str, dict[str, Workers]] = {
    COLLATE: {"DataLoader": Workers(1)},
    QUICKSTART: {
        "DataLoader 1 worker prefetch 2": Workers(1),
        "DataLoader 1 worker prefetch 4": Workers(1, prefetch=4),
        "DataLoader 2 workers prefetch 2": Workers(2),
        "DataLoader 2 workers prefetch 4": Workers(2, prefetch=4),
        "DataLoader 2 spawned prefetch 2": Workers(2, context="spawn"),
    },
    MODELS: {
        **{name: Workers(count, context="spawn") for count, name in enumerate(SPAWNED, 1)},
        FORKED: Workers(3),
        FORKED_PRELOADED: Workers(3),
        SPAWNED_PRELOADED: Workers(3, context="spawn"),
    },
}
CONTESTANTS: dict[str, tuple[str, ...]] = {
    COLLATE: (BATCH, COPIED, IN_PLACE, FILLED, *DATALOADERS[COLLATE]),
    QUICKSTART: (PLAIN, FUSED, *DATALOADERS[QUICKSTART]),
    MODELS: (*WAYS, *DATALOADERS[MODELS]),
}
