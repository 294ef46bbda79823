"""The request to a contestant's process and its answer, as JSON in both directions. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, Self

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
    """The measured epochs, after the first one, whose batches are checked."""
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

    def dumps(self) -> str:
        """Encode the job as an argument of the contestant's process."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """Decode the argument that `dumps` returned."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Answer:
    """The measurements of one turn."""

    first_batch_s: float
    """Time to the first batch of the first epoch, from before the loader is created, with everything imported."""
    second_first_s: float
    """Time from the request for the second epoch to its first batch."""
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
    """The digests of the first epoch's batches, in order."""
    told: list[str]
    """The lines of stagepipe's own report: its stages, its hops, its verdict."""
    life_cpu_s: float = 0.0
    """Processor time of the whole process tree from start to end, from getrusage(2), including imports."""

    def dumps(self) -> str:
        """Encode the answer as one line."""
        return json.dumps(asdict(self))
