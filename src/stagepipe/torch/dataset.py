"""`StageDataset`: a pipeline for code that wants a `torch.utils.data.DataLoader`. In the training process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from torch.utils.data import IterableDataset, get_worker_info

from stagepipe.core import UsageError
from stagepipe.torch.loader import Loader


class StageDataset(IterableDataset[Any]):
    """A pipeline's items as an `IterableDataset`, for `DataLoader(dataset, batch_size=None, num_workers=0)`.

    Takes what `Loader` takes. `batch_size=32` works too, and collates in the training process; a `Batch` stage does it
    in a process of its own. The pipeline has workers already, so `num_workers` must be 0: a worker would start a whole
    pipeline of its own, and each would yield everything.

    It is a context manager, and is closed when it is collected. `state_dict` and `load_state_dict` are there, so
    torchdata's StatefulDataLoader finds them.

    >>> from torch.utils.data import DataLoader
    >>> with StageDataset({"source": {"uses": range(4)}}) as dataset:
    ...     list(DataLoader(dataset, batch_size=2, num_workers=0))
    [tensor([0, 1]), tensor([2, 3])]

    Raises what `Loader` raises, and UsageError when it finds itself in a worker of a DataLoader.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Check the config; nothing is started."""
        super().__init__()
        self.loader = Loader(*arguments, **keywords)

    def __iter__(self) -> Iterator[Any]:
        """One epoch."""
        worker = get_worker_info()
        if worker is not None:
            message = (
                f"a StageDataset is in worker {worker.id} of a DataLoader with num_workers={worker.num_workers}, which "
                "would run the whole pipeline once a worker; write DataLoader(dataset, batch_size=None, "
                "num_workers=0) and set `workers` of the stages in the config, or iterate over stagepipe.torch.Loader"
            )
            raise UsageError(message)
        return iter(self.loader)

    def __len__(self) -> int:
        """How many items an epoch yields. TypeError where nobody knows."""
        return len(self.loader)

    def __getstate__(self) -> Any:
        """Refused: it would travel to a worker of a DataLoader."""
        message = (
            "a StageDataset has processes and cannot be sent to another one; write DataLoader(dataset, "
            "batch_size=None, num_workers=0) and set `workers` of the stages in the config"
        )
        raise UsageError(message)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands, as `Loader.state_dict` has it."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on from there, as `Loader.load_state_dict` does."""
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()

    def __enter__(self) -> Self:
        """The dataset itself, its workers started."""
        self.loader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.loader.__exit__(kind, error, trace)
