"""The contestants of each part, the request to a contestant's process and its answer, as JSON in both directions.

Pure: the process that starts the contestants does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFERENCE = "reference"
"""Not a contestant: the first epoch made in one process without a transport. All others are compared with it."""
COLLATE, QUICKSTART, MODELS = PARTS = ("collate", "quickstart", "models")

BATCH, COPIED = "stagepipe Batch", "stagepipe Batch from copies"
FILLED, HEADER_ONLY = "stagepipe filled", "stagepipe header only"
PLAIN, FUSED = "stagepipe", "stagepipe fused x 2"
DATALOADER, TWO_WORKERS = "DataLoader", "DataLoader 2 workers"
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
    COLLATE: {DATALOADER: Workers(1), TWO_WORKERS: Workers(2)},
    QUICKSTART: {
        "DataLoader 1 worker prefetch 2": Workers(1),
        "DataLoader 2 workers prefetch 2": Workers(2),
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


Step = Literal["none", "sum"]
SEED = 17
"""The quickstart's seed, which determines every order and every random draw."""


@dataclass(frozen=True)
class Job:
    """One contestant's turn in one part."""

    part: str
    contestant: str
    items: int
    """Samples in an epoch, counted before they are batched."""
    batch: int
    side: int
    """Side of the images in pixels."""
    steady_from: int
    """The clock starts when this batch arrives; 0: with the request for the epoch."""
    epochs: int
    """The measured epochs, after the first one."""
    checked: int
    """The batches of the first epoch that are taken and checked; it is left after them."""
    step: Step
    """The work of the training process on a batch: nothing, or the sum of its elements, which reads every byte."""
    images: str
    model_bytes: int
    corrupt: bool = False
    """Corrupt one element of what arrives; the check must notice."""

    @property
    def batches(self) -> int:
        """The number of batches in an epoch; the last may be shorter."""
        return -(-self.items // self.batch)


@dataclass(frozen=True)
class Answer:
    """The measurements of one turn."""

    first_batch_s: float
    """Time to the first batch of the first epoch, from before the loader is created, with everything imported."""
    second_first_s: float
    """Time from the request for the last measured epoch to its first batch."""
    items_per_s: float
    cpu_s_per_item: float
    """Processor time of the whole process tree in the steady state, divided by the items of that time."""
    waits_s: list[float]
    """The training process's wait for each batch of the measured epochs, except the first of an epoch."""
    pss_bytes: int
    """The largest sum over the process tree, in the middle of an epoch."""
    bare_pss_bytes: int
    """Memory of the training process alone, with torch and stagepipe imported and nothing created yet."""
    digests: list[str]
    """The digests of the first epoch's checked batches, in order."""
    told: list[str]
    """The lines of stagepipe's own report: its stages, its hops, its verdict."""
