"""`DataLoader`: stagepipe's, which takes the arguments of torch's DataLoader, and counts what it starts.

It stands for torchdata's StatefulDataLoader too. Without workers it reads inline, as the original does.
"""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

import stagepipe.torch
from suite_adapters.faults import spoil
from suite_adapters.uses import count_use


class DataLoader(stagepipe.torch.DataLoader[Any]):
    """A DataLoader of a test."""

    def __init__(self, dataset: Any, *arguments: Any, snapshot_every_n_steps: int = 1, **options: Any) -> None:
        count_use("made")
        module = sys.modules.get(type(dataset).__module__)
        if module is not None and module.__name__.startswith("test_"):
            cloudpickle.register_pickle_by_value(module)  # it imports torch's test tools: seconds in each worker
        super().__init__(dataset, *arguments, **options)

    def __iter__(self) -> Any:
        """Begin an epoch."""
        count_use("processes" if self.num_workers else "inline")
        return spoil(super().__iter__())
