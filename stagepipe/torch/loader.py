"""`Loader`: a pipeline as a torch data loader. `StageDataset`: for code that needs a `torch.utils.data.DataLoader`.

Both run in the training process; stages run in the pipeline's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from torch.utils.data import IterableDataset, get_worker_info

from stagepipe.api import Pipeline
from stagepipe.core import StagepipeError, UsageError, fold_internal_frames, folds_frames_of_methods
from stagepipe.plan import EvenMode, Shard
from stagepipe.report import LiveRun, Report
from stagepipe.torch.ranks import RankChoice, RankOrigin, RankTopology
from stagepipe.torch.shared_pipeline import SharedPipeline
from stagepipe.torch.transfer import DeviceTransfer, to_tensors

if TYPE_CHECKING:
    import torch


@folds_frames_of_methods
class Loader:
    """Iterate over a pipeline's items as torch tensors; each iteration is an epoch, and the workers stay alive.

    Args:
        config: the path of a YAML file, a mapping, an OmegaConf object, a builder, or a `stagepipe.Pipeline`, which the
            loader closes.
        overrides: strings such as `"stages.decode.workers=8"`.
        rank: this process's part of the source: item i of the source's order goes to rank i % world_size. `"auto"`
            takes rank and world size from an initialised `torch.distributed` process group, else from RANK and
            WORLD_SIZE (set by `torchrun` and Ray Train), else from a task of Slurm's `srun`, else 0 of 1. Without rank
            and world_size, the loader yields all items, and warns if several ranks train together.
        world_size: the number of parts.
        even: give all ranks the same number of source items: `"pad"` repeats the first items, `"drop"` drops the last.
            None: some ranks may get one item more.
        pin_memory: lock the memory of yielded tensors, so that copies to a GPU are asynchronous. Copy on the stream
            that is current when you request the next item, let that stream wait for the copy, or keep the tensor until
            the copy is done. Without a GPU, it warns and has no effect.
        device: move yielded tensors to this device; locks their memory too.
        limit: the number of source items per epoch.
        inline: run all stages in this process.
        share: with `"node"`, the ranks of a machine share one pipeline in the machine's first rank. Item k of an epoch
            goes to local rank k % local_world_size, and `even` also applies to the last items of this split.
        local_rank: this process's rank on its machine. With `share`, missing values of local_rank, local_world_size,
            rank and world_size come from the variables that `torchrun` sets.
        local_world_size: the number of ranks on this machine.

    NumPy arrays arrive as tensors of the same shape and dtype in shared memory, without a copy. They are writable, and
    their memory is reused once the last tensor over it is gone. If you hold more than a third of the pipeline's
    `memory`, further items are copies (the report counts them), so `list(loader)` works.

    >>> config = {"source": {"uses": range(6)}, "stages": [{"name": "batch", "uses": "stagepipe.stages.Batch",
    ...                                                     "with": {"size": 3}}]}
    >>> with Loader(config) as loader:
    ...     list(loader)
    [tensor([0, 1, 2]), tensor([3, 4, 5])]

    Raises ConfigError with all mistakes of the config. Iterating raises RunError if the run fails, and UsageError if a
    newer iteration of this loader has begun. With `share`, RunError also names a rank that did not connect, closed its
    loader or ended.
    """

    def __init__(  # noqa: PLR0913 - one option each
        self,
        config: str | Path | Mapping[str, Any] | Pipeline | object,
        overrides: Sequence[str] = (),
        *,
        rank: int | Literal["auto"] | None = None,
        world_size: int | None = None,
        even: EvenMode | None = None,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        limit: int | None = None,
        inline: bool = False,
        share: Literal["node"] | None = None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        """Check the config; the workers start at `with` or the first iteration."""
        self.pipeline: Pipeline | SharedPipeline
        choice = _choose_rank(rank, world_size, config, share)
        self._rank_choice = choice
        if share is not None:
            if share != "node":
                raise UsageError(
                    f"share={share!r}; give 'node' (one pipeline for all ranks of a machine) or None (one for each "
                    "rank)"
                )
            topology = RankTopology.from_environment(choice.rank, choice.world_size, local_rank, local_world_size)
            self.pipeline = _make_shared_pipeline(topology, config, overrides, even=even, limit=limit, inline=inline)
        elif isinstance(config, Pipeline):
            options = (tuple(overrides), choice.rank, choice.world_size, even, limit, inline)
            if rank == "auto" or options != ((), 0, 1, None, None, False):
                raise UsageError(
                    "a Pipeline already has its overrides, rank, world_size, even, limit and inline; pass them to the "
                    "Pipeline"
                )
            self.pipeline = config
        else:
            self.pipeline = Pipeline(
                config,
                overrides,
                inline=inline,
                limit=limit,
                rank=choice.rank,
                world_size=choice.world_size,
                even=even,
            )
        find_lease = self.pipeline._find_lease  # noqa: SLF001 - used by loaders alone
        self._transfer = DeviceTransfer(pin_memory=pin_memory, device=device, find_lease=find_lease)
        self.pipeline._attach_loader(keep_idle_pages=self._transfer.is_pinning)  # noqa: SLF001 - for loaders alone

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, or over the rest of a loaded one. The workers start on it now.

        Raises UsageError if `rank="auto"` found another rank than the one that this process has by now.
        """
        self._rank_choice.check_world()
        return self._iterate(to_tensors)

    def _iterate(self, convert: Callable[[Any], Any]) -> Iterator[Any]:
        return _TensorIterator(iter(self.pipeline), self._transfer, convert)

    def __len__(self) -> int:
        """Return the number of items per epoch. Raises TypeError if it is unknown, for example after a stream."""
        return len(self.pipeline)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise TypeError: `torch.utils.data.DataLoader` asks for items by index if it gets a Loader for a dataset."""
        raise TypeError(
            f"a Loader has no item {index!r}: it is a loader already, so iterate over it; or give the DataLoader a "
            "`stagepipe.torch.StageDataset` of the same config"
        )

    # ------------------------------------------------------------------ epochs and state

    @property
    def epoch(self) -> int:
        """The current epoch or, between epochs, the next one: where a resumed training loop starts."""
        return self.pipeline.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next epoch and keep a loaded position in it; raises UsageError if it is below 0."""
        self.pipeline.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded item, regardless of items prepared ahead.

        The dict is flat and contains numbers and strings, so you can pickle it, write it as JSON, or put it in any
        checkpoint. A call takes a few microseconds and does not involve the workers.
        """
        return self.pipeline.state_dict()

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow_changed: bool = False
    ) -> None:
        """Resume the next iteration at a saved position; later iterations are whole epochs.

        The number of workers, the transport and the machine may differ. To change the world size, pass the list of the
        states that all ranks saved at the same step. Raises UsageError, with the difference, if the state was saved
        with a config that yields different items; `allow_changed=True` accepts it. See
        `stagepipe.Pipeline.load_state_dict`.
        """
        self.pipeline.load_state_dict(state_dict, allow_changed=allow_changed)

    # ------------------------------------------------------------------ report, start and end

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the current figures of the run; see `stagepipe.Pipeline.progress`."""
        return self.pipeline.progress(detailed=detailed)

    def report(self) -> Report:
        """Return the report so far, or of the whole run once the loader is closed."""
        return self.pipeline.report()

    def close(self) -> None:
        """Stop the workers; yielded tensors, the report and the state stay valid."""
        self._transfer.close()
        self.pipeline.close()

    def __enter__(self) -> Self:
        """Start the workers and return the loader."""
        self.pipeline.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the workers."""
        self._transfer.close()
        self.pipeline.__exit__(exc_type, exc, traceback)


def _choose_rank(
    rank: int | Literal["auto"] | None, world_size: int | None, config: object, share: str | None
) -> RankChoice:
    choice = RankChoice.choose(rank, world_size)
    has_shard = isinstance(config, Pipeline) and config.shard != Shard(even=config.shard.even)
    if choice.origin is RankOrigin.LEFT_OUT and (share is not None or has_shard):
        return replace(choice, origin=RankOrigin.GIVEN)
    return choice


def _make_shared_pipeline(
    topology: RankTopology,
    config: Any,
    overrides: Sequence[str],
    *,
    even: EvenMode | None,
    limit: int | None,
    inline: bool,
) -> SharedPipeline:
    if isinstance(config, Pipeline) or inline:
        message = "share='node' builds the pipeline itself, on the first rank and in processes: pass the config, not "
        raise UsageError(message + ("inline=True" if inline else "a Pipeline"))
    pipeline = Pipeline(
        config, overrides, limit=limit, rank=topology.node_rank, world_size=topology.node_count, even=even
    )
    return SharedPipeline(pipeline, topology)


class _TensorIterator:
    """One iteration. It holds no reference to an item that it has yielded."""

    def __init__(self, items: Iterator[Any], transfer: DeviceTransfer, convert: Callable[[Any], Any]) -> None:
        self._items = items
        self._transfer = transfer
        self._convert = convert

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._transfer.release_blocks()
        try:
            return self._transfer(self._convert(next(self._items)))
        except StagepipeError as error:
            raise fold_internal_frames(error) from error.__cause__


class StageDataset(Loader, IterableDataset[Any]):
    """Provide a pipeline's items as an `IterableDataset` for `DataLoader(dataset, batch_size=None, num_workers=0)`.

    Takes the arguments of `Loader` and yields the same items. `batch_size=32` also works, but collates in the training
    process; a `Batch` stage collates in its own process. `num_workers` must be 0: the pipeline has its own workers, and
    each DataLoader worker would start a whole pipeline and yield every item.

    Use it as a context manager; it also closes when it is garbage-collected. torchdata's StatefulDataLoader uses its
    `state_dict` and `load_state_dict`.

    >>> from torch.utils.data import DataLoader
    >>> with StageDataset({"source": {"uses": range(4)}}) as dataset:
    ...     list(DataLoader(dataset, batch_size=2, num_workers=0))
    [tensor([0, 1]), tensor([2, 3])]

    Raises the errors of `Loader`, and UsageError if it is iterated in a DataLoader worker or pickled.
    """

    @property
    def loader(self) -> Loader:
        """The loader itself."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch. Raises UsageError in a DataLoader worker."""
        worker = get_worker_info()
        if worker is not None:
            raise UsageError(
                f"a StageDataset was iterated in worker {worker.id} of a DataLoader with "
                f"num_workers={worker.num_workers}, and each worker would run the whole pipeline; write "
                "DataLoader(dataset, batch_size=None, num_workers=0) and set `workers` of the stages in the config, or "
                "iterate over stagepipe.torch.Loader"
            )
        return super().__iter__()

    def __getstate__(self) -> Any:
        """Refuse to be pickled: a DataLoader pickles a dataset to send it to a worker."""
        raise UsageError(
            "a StageDataset owns processes and cannot be sent to another process; write DataLoader(dataset, "
            "batch_size=None, num_workers=0) and set `workers` of the stages in the config"
        )
