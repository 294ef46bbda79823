"""The contestants of each part. Pure: the process that starts the contestants does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFERENCE = "reference"
"""Not a contestant: the first epoch made in one process without a transport. All others are compared with it."""
COLLATE, QUICKSTART, MODELS = PARTS = ("collate", "quickstart", "models")

BATCH, COPIED = "stagepipe Batch", "stagepipe Batch from copies"
FILLED, HEADER_ONLY = "stagepipe filled", "stagepipe header only"
PLAIN, FUSED = "stagepipe", "stagepipe fused x 2"
DATALOADER = "DataLoader"
THREE_PROCESSES = "stagepipe 3 processes"
FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED = (
    "DataLoader 3 forked",
    "DataLoader 3 forked made before",
    "DataLoader 3 spawned handed over",
)
SPAWNED = "DataLoader 3 spawned"


@dataclass(frozen=True)
class Workers:
    """The settings of a DataLoader. Its workers are persistent; everything else keeps its default."""

    count: int
    prefetch: int = 2
    context: Literal["fork", "spawn"] = "fork"


DATALOADERS: dict[str, dict[str, Workers]] = {
    COLLATE: {DATALOADER: Workers(1)},
    QUICKSTART: {
        "DataLoader 1 worker prefetch 2": Workers(1),
        "DataLoader 1 worker prefetch 4": Workers(1, prefetch=4),
        "DataLoader 2 workers prefetch 2": Workers(2),
        "DataLoader 2 workers prefetch 4": Workers(2, prefetch=4),
        "DataLoader 2 spawned prefetch 2": Workers(2, context="spawn"),
    },
    MODELS: {
        SPAWNED: Workers(3, context="spawn"),
        FORKED: Workers(3),
        FORKED_PRELOADED: Workers(3),
        SPAWNED_PRELOADED: Workers(3, context="spawn"),
    },
}
CONTESTANTS: dict[str, tuple[str, ...]] = {
    COLLATE: (BATCH, COPIED, FILLED, *DATALOADERS[COLLATE], HEADER_ONLY),
    QUICKSTART: (PLAIN, FUSED, *DATALOADERS[QUICKSTART]),
    MODELS: (THREE_PROCESSES, *DATALOADERS[MODELS]),
}
