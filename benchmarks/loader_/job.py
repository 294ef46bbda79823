"""What a contestant's process is asked for, and what it answers: JSON both ways. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, Self

Step = Literal["none", "sum"]
SEED = 17
"""The quickstart's seed; every order and every draw follows from it."""


@dataclass(frozen=True)
class Job:
    """One contestant's turn in one part."""

    part: str
    contestant: str
    items: int
    """Of an epoch: samples, counted before they are batched."""
    batch: int
    side: int
    """Of the images, in pixels."""
    steady_from: int
    """The clock starts with the arrival of this batch; 0: with the request for the epoch."""
    epochs: int
    """How many are measured, after the first one, whose batches are checked."""
    step: Step
    """What the training process does with a batch: nothing, or the sum of its elements, which reads every byte."""
    images: str
    model_bytes: int
    corrupt: bool = False
    """Spoil an element of what arrives: the check must notice."""

    @property
    def batches(self) -> int:
        """Of an epoch; the last may be shorter."""
        return -(-self.items // self.batch)

    def dumps(self) -> str:
        """As an argument of the contestant's process."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """From that argument."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Answer:
    """What was measured in one turn."""

    first_batch_s: float
    """From before the loader is made, everything imported, to the first batch of the first epoch."""
    second_first_s: float
    """From the request for the second epoch to its first batch."""
    items_per_s: float
    cpu_s_per_item: float
    """Processor time of the whole process tree in the steady state, over the items of that time."""
    waits_s: list[float]
    """For each batch of the measured epochs but an epoch's first: how long the training process waited."""
    pss_bytes: int
    """The largest sum over the process tree, in the middle of an epoch."""
    bare_pss_bytes: int
    """Of the training process alone, torch and stagepipe imported, before anything is made."""
    digests: list[str]
    """Of the first epoch's batches, in order."""
    told: list[str]
    """What stagepipe's own report says: its stages, its hops, its verdict."""
    life_cpu_s: float = 0.0
    """Processor time of the whole process tree from start to end, by getrusage(2): imports and all."""

    def dumps(self) -> str:
        """As a line."""
        return json.dumps(asdict(self))
