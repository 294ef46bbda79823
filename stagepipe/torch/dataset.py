"""`StageDataset`: a pipeline for code that needs a `torch.utils.data.DataLoader`. Runs in the training process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from torch.utils.data import IterableDataset, get_worker_info

from stagepipe.core import UsageError
from stagepipe.torch.loader import Loader


class StageDataset(IterableDataset[Any]):
    """A pipeline's items as an `IterableDataset`, for `DataLoader(dataset, batch_size=None, num_workers=0)`.

    Takes the arguments of `Loader` and yields the same items. `batch_size=32` also works, but collates in the training
    process; a `Batch` stage collates in its own process. `num_workers` must be 0: the pipeline has its own workers, and
    each DataLoader worker would start a whole pipeline and yield every item.

    Use it as a context manager; it also closes when it is garbage-collected. torchdata's StatefulDataLoader finds its
    `state_dict` and `load_state_dict`.

    >>> from torch.utils.data import DataLoader
    >>> with StageDataset({"source": {"uses": range(4)}}) as dataset:
    ...     list(DataLoader(dataset, batch_size=2, num_workers=0))
    [tensor([0, 1]), tensor([2, 3])]

    Raises what `Loader` raises, and UsageError when it is iterated in a DataLoader worker or pickled.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Check the config; nothing starts yet."""
        super().__init__()
        self.loader = Loader(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch. Raises UsageError in a DataLoader worker."""
        worker = get_worker_info()
        if worker is not None:
            message = (
                f"a StageDataset was iterated in worker {worker.id} of a DataLoader with "
                f"num_workers={worker.num_workers}, and each worker would run the whole pipeline; write "
                "DataLoader(dataset, batch_size=None, num_workers=0) and set `workers` of the stages in the config, or "
                "iterate over stagepipe.torch.Loader"
            )
            raise UsageError(message)
        return iter(self.loader)

    def __len__(self) -> int:
        """Return the number of items per epoch. Raises TypeError if it is unknown."""
        return len(self.loader)

    def __getstate__(self) -> Any:
        """Refuse to be pickled: a DataLoader pickles a dataset to send it to a worker."""
        message = (
            "a StageDataset owns processes and cannot be sent to another process; write DataLoader(dataset, "
            "batch_size=None, num_workers=0) and set `workers` of the stages in the config"
        )
        raise UsageError(message)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next epoch, as `Loader.set_epoch` does."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration, as `Loader.state_dict` does."""
        return self.loader.state_dict()

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow_changed: bool = False
    ) -> None:
        """Resume the next iteration at a saved position, as `Loader.load_state_dict` does."""
        self.loader.load_state_dict(state_dict, allow_changed=allow_changed)

    def close(self) -> None:
        """Stop the workers."""
        self.loader.close()

    def __enter__(self) -> Self:
        """Start the workers and return the dataset."""
        self.loader.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the workers."""
        self.loader.__exit__(exc_type, exc, traceback)
