"""`Loader`: a pipeline as a data loader. In the training process; the workers are the pipeline's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from stagepipe.core import UsageError
from stagepipe.engine import Pipeline
from stagepipe.plan import Even
from stagepipe.report import Report
from stagepipe.torch.node import SharedPipeline, World
from stagepipe.torch.tensors import to_tensors
from stagepipe.torch.transfer import Transfer

if TYPE_CHECKING:
    import torch


class Loader:
    """Iterates over a pipeline's items as torch tensors; each iteration is an epoch, and the workers live on between.

    Args:
        config: the path of a YAML file, a mapping, an OmegaConf object, or a `stagepipe.Pipeline`, which is the
            loader's from then on.
        overrides: texts such as `"stages.decode.workers=8"`.
        rank: which part of the source is this process's: item i of its order goes to rank i % world_size.
        world_size: how many such parts there are.
        even: how all ranks get the same number of source items: `"pad"` gives the first ones once more, `"drop"`
            leaves the last ones out; None: some ranks have one more than others.
        pin_memory: as in DataLoader; where there is no accelerator it warns and does nothing.
        device: where the tensors of what is yielded are to be.
        limit: an epoch is the first so many items of the source.
        inline: all stages run in this process.
        share: `"node"`: the ranks of a machine share one pipeline, which the first of them owns; item k of an epoch
            goes to the k % local_world_size th. `even` then also says what becomes of the last ones.
        local_rank: which of this machine's ranks this is. It, local_world_size, rank and world_size are what
            `torchrun` has set where they are left out.
        local_world_size: how many ranks this machine has.

    NumPy arrays come as tensors of the same shape and dtype over the same shared memory, without a copy. They are the
    caller's own and writable, and a block of memory is used again when the last tensor over it is gone. A caller that
    keeps a third of the pipeline's `memory` gets copies from then on (the report counts them), so `list(loader)` works.

    >>> config = {"source": {"uses": range(6)}, "stages": [{"name": "batch", "uses": "stagepipe.stages.Batch",
    ...                                                     "with": {"size": 3}}]}
    >>> with Loader(config) as loader:
    ...     list(loader)
    [tensor([0, 1, 2]), tensor([3, 4, 5])]

    Raises ConfigError with all the config's problems at once; while iterating, RunError when the run fails, and
    UsageError where another iteration of this loader has begun since. With `share`, also RunError that names the rank
    that did not come, has closed its loader, or is gone.
    """

    def __init__(  # noqa: PLR0913 - each is the user's to choose
        self,
        config: str | Path | Mapping[str, Any] | Pipeline | object,
        overrides: Sequence[str] = (),
        *,
        rank: int = 0,
        world_size: int = 1,
        even: Even | None = None,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        limit: int | None = None,
        inline: bool = False,
        share: Literal["node"] | None = None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        """Check the config; nothing is started before the first iteration, or `with`."""
        self.pipeline: Pipeline | SharedPipeline
        if share is not None:
            world = _world(share, rank, world_size, local_rank, local_world_size)
            self.pipeline = _shared(world, config, overrides, even=even, limit=limit, inline=inline)
        elif isinstance(config, Pipeline):
            chosen = (tuple(overrides), rank, world_size, even, limit, inline)
            if chosen != ((), 0, 1, None, None, False):
                message = "a Pipeline has its overrides, rank, world_size, even, limit and inline; say them there"
                raise UsageError(message)
            self.pipeline = config
        else:
            self.pipeline = Pipeline(
                config, overrides, inline=inline, limit=limit, rank=rank, world_size=world_size, even=even
            )
        self.pipeline.consumer_name = "training step"
        self._transfer = Transfer(pin_memory=pin_memory, device=device, find=self.pipeline.block_of)
        self.pipeline.keep_pages = self._transfer.pins

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of the one that was loaded. The workers begin on it now."""
        return _Items(iter(self.pipeline), self._transfer)

    def __len__(self) -> int:
        """How many items an epoch yields, as `Pipeline` has it. TypeError where nobody knows, as behind a stream."""
        return len(self.pipeline)

    # ------------------------------------------------------------------ epochs and state

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next where none is: what a resumed training loop begins with."""
        return self.pipeline.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch; a place loaded in this very epoch stays. UsageError if below 0."""
        self.pipeline.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: behind the last item that was yielded, whatever was made ahead of it.

        Flat, of numbers and texts: it can be pickled, be written as JSON, and go into any checkpoint. Taking it costs
        some microseconds and no worker hears of it.
        """
        return self.pipeline.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on from there; those after it are whole epochs.

        Workers, transport and machine may be others than they were. UsageError, with the difference, for a state of a
        config, or a world size, that gives other items.
        """
        self.pipeline.load_state_dict(state_dict)

    # ------------------------------------------------------------------ the rest

    def report(self) -> Report:
        """The report so far, or of the whole run once the loader is closed."""
        return self.pipeline.report()

    def close(self) -> None:
        """End the workers. Tensors that were yielded stay valid; so do the report and the state."""
        self._transfer.close()
        self.pipeline.close()

    def __enter__(self) -> Self:
        """The loader itself, its workers started."""
        self.pipeline.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._transfer.close()
        self.pipeline.__exit__(kind, error, trace)


def _world(share: str, rank: int, world_size: int, local_rank: int | None, local_world_size: int | None) -> World:
    if share != "node":
        message = f"share={share!r}; give 'node' (one pipeline for all ranks of a machine) or None (one for each rank)"
        raise UsageError(message)
    return World.of(rank, world_size, local_rank, local_world_size)


def _shared(
    world: World, config: Any, overrides: Sequence[str], *, even: Even | None, limit: int | None, inline: bool
) -> SharedPipeline:
    if isinstance(config, Pipeline) or inline:
        message = "share='node' makes the pipeline, in processes, on the first rank alone: pass the config, not "
        raise UsageError(message + ("inline=True" if inline else "a Pipeline"))
    pipeline = Pipeline(config, overrides, limit=limit, rank=world.machine, world_size=world.machines, even=even)
    return SharedPipeline(pipeline, world)


class _Items:
    """One iteration. It keeps nothing of what it has yielded."""

    def __init__(self, items: Iterator[Any], transfer: Transfer) -> None:
        self._items, self._transfer = items, transfer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._transfer(to_tensors(next(self._items)))
