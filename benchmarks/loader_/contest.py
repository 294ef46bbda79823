"""Who takes part in what. Pure: the process that starts the contestants imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFERENCE = "reference"
"""No contestant: the first epoch in one process, without any transport, which the others' is held against."""
COLLATE, QUICKSTART, MODELS = PARTS = ("collate", "quickstart", "models")

BATCH, COPIED = "stagepipe Batch", "stagepipe Batch from copies"
IN_PLACE, FILLED = "stagepipe in place", "stagepipe in place filled"
PLAIN, FUSED = "stagepipe", "stagepipe fused x 2"
WAYS = ("stagepipe 1 way", "stagepipe 2 ways", "stagepipe 3 ways")
FORKED, SHARED, HANDED = "DataLoader 3 forked", "DataLoader 3 forked made before", "DataLoader 3 spawned handed over"
SPAWNED = ("DataLoader 1 spawned", "DataLoader 2 spawned", "DataLoader 3 spawned")


@dataclass(frozen=True)
class Workers:
    """How a DataLoader is set up, beside what it loads. Persistent, everything else as it comes."""

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
        SHARED: Workers(3),
        HANDED: Workers(3, context="spawn"),
    },
}
CONTESTANTS: dict[str, tuple[str, ...]] = {
    COLLATE: (BATCH, COPIED, IN_PLACE, FILLED, *DATALOADERS[COLLATE]),
    QUICKSTART: (PLAIN, FUSED, *DATALOADERS[QUICKSTART]),
    MODELS: (*WAYS, *DATALOADERS[MODELS]),
}
