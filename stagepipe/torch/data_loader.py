"""`DataLoader`: torch's DataLoader with the workers of a pipeline, for a script whose import is all that changes.

Runs in the training process. torch's class checks the arguments and holds them. The sampler stays here too: it is read
at the start of each epoch, as torch reads it, and the workers get the indices through an anonymous file.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import json
import multiprocessing
import pickle
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import length_hint
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_collate

from stagepipe.api import Pipeline
from stagepipe.config import load
from stagepipe.core import SCRIPT_MODULES, RunError, UsageError, WorkerIdentity, saves_state
from stagepipe.engine import EpochCancelledError
from stagepipe.report import LiveRun, Report
from stagepipe.sources import DrawnOrder, StatefulWorkerStream, WorkerStream
from stagepipe.stages import collate_as_torch
from stagepipe.torch.loader import Loader

T_co = TypeVar("T_co", covariant=True)

_WRAPPED: Final = ("base_dataloader", "loader", "dataloader")
"""Attributes in which wrappers keep the DataLoader that they iterate over: Accelerate's, timm's and others'."""
_NO_CONFIG_NOTE: Final = (
    "A DataLoader has no config to set a key in. `stagepipe.torch.Loader` takes one; there, the source "
    "`stagepipe.sources.dataset` reads the same dataset."
)
_FORK_NOTE: Final = (
    'With multiprocessing_context="fork" nothing is sent: the workers are forks of this process and have its objects.'
)
_STATE_KEY: Final = "loader"
_TURNS_KEY: Final = "turns"
"""Of the workers of an iterable dataset that have not reached their end, whose turn is next, and whose then."""
_PART_INDICES: Final = 1 << 17
"""The order is read and sent to the workers in parts: a sampler may have no end. One with a length is read at once."""
_LEAVE_TIMEOUT_S: Final = 30.0
"""More than the deadlines of a pipeline's close together."""
_HAVE_ALREADY: Final = frozenset({"builtins", "numpy", "stagepipe", "torch", *sys.stdlib_module_names})
"""Packages that the fork server has imported."""


class DataLoader(TorchDataLoader[T_co]):
    """Replace `torch.utils.data.DataLoader`: same arguments, same batches, in the same order.

    It draws from torch's generators as the original does, so the order of the indices and later random numbers of the
    training loop are the same. These things differ:

    - Random augmentation has a seed per batch instead of per worker. Augmented batches of a map-style dataset are the
      same with any `num_workers`, but differ from the original's. Seeds that `worker_init_fn` sets have no effect:
      each batch seeds the generators of Python, NumPy and torch from the loader's `generator`.
    - A worker that dies is replaced, and its batches are made again. An error in a dataset is a `RunError` that also
      has the type of the error. It ends the epoch; the original can continue with the next batch.
    - `timeout` limits the work on a batch, or for an iterable dataset the wait for a batch.
      `prefetch_factor * num_workers` is the window of the pipeline, and `in_order=False` is `order: any`.
    - The sampler is read ahead: to its length if it has one, otherwise 131,072 indices at a time. The order is the
      original's if the sampler draws at its start, as torch's do. For a sampler that draws for each batch, it is the
      order of a training loop that draws nothing between batches.
    - Each worker of an iterable dataset is its own pipeline. The figures and the report are those of the first worker.
    - With `persistent_workers`, a new iteration invalidates the previous one, which raises UsageError if it continues.

    As in the original, each epoch has new workers, unless `persistent_workers` keeps them. The workers end with the
    epoch or when its iterator is dropped, for example by `break`; state and report remain. If `multiprocessing` forks,
    as it does by default on Linux before Python 3.14, the workers are forks of this process and have its dataset and
    collate function, whatever these hold. With `multiprocessing_context="spawn"` or `"forkserver"` the workers get
    copies, and an object that cannot be pickled is refused by name; `"fork"` selects forks.

    A state contains the position in the epoch and the origin of its order, so a resumed epoch yields the remaining
    batches of the saved one. Save the state of torch's generator, and of one that you pass as `generator`, too: later
    epochs draw from it.

    >>> from stagepipe.torch import DataLoader
    >>> loader = DataLoader(range(5), batch_size=2)
    >>> list(loader)
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]
    >>> len(loader)
    3

    Raises the errors of torch's class for invalid arguments, those of `Loader` while iterating, and UsageError if a
    loaded state has a different order from the sampler's.
    """

    _run: _Run | None = None
    _epoch: _Epoch | None = None
    _saved: Mapping[str, Any] | None = None

    @classmethod
    def take_over(cls, loader: Any) -> Any:
        """Return a DataLoader with another loader's arguments; in a wrapper, replace the wrapped one.

        Use it for a loader that a library creates: timm's `create_loader`, Accelerate's `prepare`. If you pass a module
        whose name `DataLoader` is torch's class, the name is replaced, and the module creates stagepipe loaders from
        then on. `accelerate.data_loader` creates all loaders that Accelerate prepares, including those of a Trainer.

        >>> DataLoader.take_over(torch.utils.data.DataLoader(range(4), batch_size=2))  # doctest: +ELLIPSIS
        <stagepipe.torch.data_loader.DataLoader object at ...>

        Raises UsageError for an object that neither is, wraps nor names a `torch.utils.data.DataLoader`, and for a
        subclass that iterates differently.
        """
        if isinstance(loader, ModuleType):
            if getattr(loader, "DataLoader", None) not in {TorchDataLoader, cls}:
                raise UsageError(f"take_over({loader.__name__}): the module has no `DataLoader` that is torch's class")
            loader.DataLoader = cls  # type: ignore[attr-defined]
            return loader
        for name in _WRAPPED:
            wrapped = getattr(loader, name, None)
            if wrapped is not None and wrapped is not loader:
                setattr(loader, name, cls.take_over(wrapped))
                return loader
        if isinstance(loader, cls):
            return loader
        if not isinstance(loader, TorchDataLoader):
            raise UsageError(
                f"take_over({type(loader).__qualname__}): expected a torch.utils.data.DataLoader, or a wrapper that "
                f"holds one as its {', '.join(f'`{name}`' for name in _WRAPPED)}"
            )
        if type(loader).__iter__ is not TorchDataLoader.__iter__:
            raise UsageError(
                f"take_over({type(loader).__qualname__}): it has its own `__iter__`, which would not be called; "
                "give a torch.utils.data.DataLoader"
            )
        taken = cls.__new__(cls)
        taken.__dict__.update(loader.__dict__)
        return taken

    def __iter__(self) -> Any:
        """Begin an epoch, or go on with that of a loaded state. The order is drawn now."""
        saved, self._saved = self._saved, None
        run = self._run if self.persistent_workers and saved is None else None
        if saved is None:
            draws = _Draws(self, None if run is None else run.seed)
        else:
            draws = _Draws.draw_again(self, saved[_STATE_KEY])
        self._run = run or _Run(self, draws.seed)
        self._epoch = _Epoch(self._run, draws, saved, is_last=not self.persistent_workers)
        return _Batches(self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, as numbers and strings (8 kB, or 16 with a `generator`).

        Between epochs, the state is empty.
        """
        if self._saved is not None:
            return dict(self._saved)
        return {} if self._epoch is None else self._epoch.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the next iteration at a saved position, with any number of workers; later ones are whole epochs.

        Raises UsageError for the state of another loader.
        """
        if state_dict and _STATE_KEY not in state_dict:
            raise UsageError(
                f"load_state_dict: this is not a state of stagepipe.torch.DataLoader: it has no {_STATE_KEY!r}; start "
                "a new epoch, without a state"
            )
        self._saved = dict(state_dict) or None
        self._epoch = None  # that of a state from between epochs is none

    def __getstate__(self) -> dict[str, Any]:
        """Leave the workers out of a copy: a collate function may hold an Accelerator, which holds its loaders."""
        return {**self.__dict__, "_run": None, "_epoch": None}

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the figures of the current epoch, as `stagepipe.Pipeline.progress`; raises UsageError before it."""
        if self._run is None:
            raise UsageError("this DataLoader has no figures before it is iterated over")
        return self._run.loader.progress(detailed=detailed)

    def report(self) -> Report:
        """Return the report of the current or last epoch; raises UsageError before the first.

        It has no memory of workers that lived for less than five seconds.
        """
        if self._run is None:
            raise UsageError("this DataLoader has no report before it is iterated over")
        return self._run.loader.report()


class _Run:
    """A pipeline for an epoch, or with `persistent_workers` for all of them. An iterable dataset has one a worker."""

    def __init__(self, owner: DataLoader[Any], seed: int) -> None:
        self.seed = seed
        is_stream = isinstance(owner.dataset, IterableDataset)
        self._order = None if is_stream else DrawnOrder()
        self._stream_timeout_s = owner.timeout if is_stream and owner.num_workers else 0
        workers = owner.num_workers if is_stream and owner.in_order else 1
        forks = _forks_caller(owner)
        identities = [WorkerIdentity(worker, owner.num_workers, seed) for worker in range(max(workers, 1))]
        self.loaders = [
            Loader(
                replace(load(_make_config(owner, self._order, identity, forks=forks)), forks_caller=forks),
                pin_memory=owner.pin_memory,
                inline=owner.num_workers == 0,
                rank=0,
                world_size=1,
            )
            for identity in identities
        ]
        self._next_epoch = 0
        self.is_closed = False

    @property
    def loader(self) -> Loader:
        """The first worker's, or that of all."""
        return self.loaders[0]

    def begin(self, draws: _Draws, saved: Mapping[str, Any] | None) -> deque[_Turn]:
        """Start an epoch, or the rest of a saved one."""
        if self._order is not None:
            self._order.put(draws.order)
        turns = list(range(len(self.loaders)))
        if saved is not None:
            turns = self._load(saved)
        epoch = max(self._next_epoch, *(loader.epoch for loader in self.loaders))
        self._next_epoch = epoch + 1  # an iteration that was not used has another order
        for loader in self.loaders:
            loader.set_epoch(epoch)
        try:
            return deque((worker, self.loaders[worker]._iterate(_leave)) for worker in turns)  # noqa: SLF001 - for loaders
        except UsageError as error:
            if "cannot be sent to a worker" in str(error):
                error.add_note(_FORK_NOTE)
            raise

    def read_batch(self, worker: int, batches: Iterator[Any]) -> Any:
        """Return a worker's next batch. A stream is read in the source's process, whose items have no `timeout`."""
        if not self._stream_timeout_s:
            return next(batches)
        pipeline = cast("Pipeline", self.loaders[worker].pipeline)  # no rank shares it
        timer = threading.Timer(self._stream_timeout_s, pipeline.cancel_epoch)
        timer.daemon = True
        timer.start()
        try:
            return next(batches)
        except EpochCancelledError:
            raise RunError(
                f"worker {worker} made no batch within the `timeout` of {self._stream_timeout_s:g} s; make the dataset "
                "faster, or raise the `timeout` of the DataLoader"
            ) from None
        finally:
            timer.cancel()

    def _load(self, saved: Mapping[str, Any]) -> list[int]:
        states: dict[int, dict[str, Any]] = defaultdict(dict)
        for key, value in saved.items():
            number, dot, name = key.partition(".")
            if dot:
                states[int(number)][name] = value
        if len(states) != len(self.loaders):
            raise UsageError(
                f"the state was saved with num_workers={len(states)}, found {len(self.loaders)}: a dataset that "
                "workers split between them continues only with the same number; set it, or start without the state"
            )
        turns = list(map(int, saved[_TURNS_KEY].split()))
        for worker in turns:
            self.loaders[worker].load_state_dict(states[worker], allow_changed=True)
        return turns

    def state_dict(self, turns: Sequence[_Turn]) -> dict[str, Any]:
        states = enumerate(loader.state_dict() for loader in self.loaders)
        state = {f"{worker}.{key}": value for worker, each in states for key, value in each.items()}
        return {**state, _TURNS_KEY: " ".join(str(worker) for worker, _ in turns)}

    def close(self) -> None:
        self.is_closed = True
        for loader in self.loaders:
            loader.close()


_Turn = tuple[int, Iterator[Any]]
"""A worker of an iterable dataset and its batches; 0 and all batches of a map-style one."""


def _leave(batch: Any) -> Any:
    """Leave NumPy arrays, as a DataLoader does."""
    return batch


class _Epoch:
    """An epoch and the position in it. The workers of an iterable dataset take turns."""

    def __init__(self, run: _Run, draws: _Draws, saved: Mapping[str, Any] | None, *, is_last: bool) -> None:
        self._run = run
        self._draws = draws
        self._is_last = is_last
        self._turns = run.begin(draws, saved)

    def read_batch(self) -> Any:
        """Return the next batch, as the collate function made it. Raises StopIteration after the last."""
        try:
            while self._turns or self._begin_next_part():
                try:
                    batch = self._run.read_batch(*self._turns[0])
                except StopIteration:
                    self._turns.popleft()
                else:
                    self._turns.rotate(-1)
                    return batch
            raise StopIteration  # noqa: TRY301
        except BaseException as error:
            self._turns.clear()
            self.leave()
            if isinstance(error, RunError) and "`source." in str(error):
                error.add_note(_NO_CONFIG_NOTE)
            raise

    def _begin_next_part(self) -> bool:
        has_more = self._draws.read_part()
        if has_more:
            self._turns = self._run.begin(self._draws, None)
        return has_more

    def leave(self) -> None:
        """End the workers, unless they are kept. The position and the report stay."""
        if self._is_last:
            self._run.close()

    def leave_from_any_thread(self) -> None:
        """Leave it where the garbage collector may have stopped a thread that the end of the workers waits for."""
        if self._turns:
            self._draws.leave()
        if not self._run.is_closed:
            with contextlib.suppress(RuntimeError):  # no thread starts at the interpreter's exit, which ends workers
                closer = threading.Thread(target=self.leave, name="stagepipe-leave", daemon=True)
                closer.start()
                closer.join(_LEAVE_TIMEOUT_S)

    def state_dict(self) -> dict[str, Any]:
        return {**self._run.state_dict(self._turns), _STATE_KEY: self._draws.text} if self._turns else {}


class _Batches(Iterator[Any]):
    """The iterator of an epoch. As the original's, it has the workers: without it, they end."""

    def __init__(self, epoch: _Epoch) -> None:
        self._epoch = epoch
        weakref.finalize(self, epoch.leave_from_any_thread).atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._epoch.read_batch()


def _forks_caller(owner: DataLoader[Any]) -> bool:
    """Whether torch's workers would be forks of this process: by its default until Python 3.14, as it is on Linux."""
    context = owner.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True)  # else the script could no longer set it
    return owner.num_workers > 0 and (method or multiprocessing.get_all_start_methods()[0]) == "fork"


def _make_config(
    owner: DataLoader[Any], order: DrawnOrder | None, identity: WorkerIdentity, *, forks: bool
) -> dict[str, Any]:
    """Return the config of a pipeline that reads the dataset in an order; for a stream (None), that of one worker."""
    is_batched = owner.batch_size is not None or owner.batch_sampler is not None
    arguments: dict[str, Any] = {"dataset": owner.dataset, "worker_init_fn": owner.worker_init_fn}
    source: dict[str, Any] = {"uses": "stagepipe.sources.dataset", "with": arguments}
    if order is not None:
        arguments["sampler" if owner.batch_sampler is None else "batch_sampler"] = order
    else:
        arguments |= {"batch_size": owner.batch_size, "drop_last": owner.drop_last}
        if owner.num_workers > 1 and not owner.in_order:
            arguments |= {"dataset": WorkerStream(owner.dataset), "shards": owner.num_workers}
        else:
            arguments |= {"dataset": _make_stream(owner, identity), "worker_init_fn": None}
    if owner.num_workers and (order is not None or "shards" in arguments):
        source["workers"] = owner.num_workers
        if owner.timeout and order is not None:
            source["timeout"] = f"{owner.timeout}s"
    stages = []
    if is_batched:
        arguments["collate_fn"] = collate_as_torch if owner.collate_fn is default_collate else owner.collate_fn
    else:
        stages = [{"name": "collate", "uses": owner.collate_fn, "fuse": True}]
    seed = identity.seed + identity.worker
    config: dict[str, Any] = {"name": "data-loader", "seed": seed, "source": source, "stages": stages}
    if owner.num_workers and not forks:
        _preloaded.update(_find_modules((owner.dataset, owner.collate_fn, owner.worker_init_fn)))
        config["preload"] = sorted(_preloaded)
    config["order"] = "source" if owner.in_order else "any"
    if owner.num_workers and owner.prefetch_factor:
        config["window"] = owner.prefetch_factor * (source.get("workers") or 1)
    return config


def _make_stream(owner: DataLoader[Any], identity: WorkerIdentity) -> WorkerStream:
    """Return the iterable dataset as one of the workers has it."""
    stream_class = StatefulWorkerStream if saves_state(owner.dataset) else WorkerStream
    return stream_class(owner.dataset, identity if owner.num_workers else None, owner.worker_init_fn)


_MAX_WALKED: Final = 1000
"""Objects in which the modules of a dataset are looked for."""

_preloaded: set[str] = set()
"""Of all loaders of this process, so that they have one fork server, which imports torch once."""


def _find_modules(values: Sequence[Any]) -> set[str]:
    """Return the modules that a worker imports to load copies of objects, as far as this process has imported them.

    Imported before the fork, they are imported once, and not by each worker in each epoch: transformers and datasets
    take seconds, and memory that the workers then share. What the script itself defines is sent by value, so the
    modules of what it refers to count.
    """
    found: set[str] = set()
    seen: set[int] = set()
    queue = list(values)
    while queue and len(seen) < _MAX_WALKED:
        value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        named = value if isinstance(value, type | FunctionType | BuiltinFunctionType) else type(value)
        module = value.__name__ if isinstance(value, ModuleType) else named.__module__
        if module and module.partition(".")[0] not in _HAVE_ALREADY and _has_file(module):
            found.add(module)
        queue += _list_parts(value, is_by_value=module in SCRIPT_MODULES)
    return found


def _list_parts(value: Any, *, is_by_value: bool) -> list[Any]:
    """Return what is pickled with an object, or named by code that is pickled with it."""
    if isinstance(value, FunctionType):
        parts = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        names = value.__code__.co_names if is_by_value else ()
        return [*parts, *(value.__globals__[name] for name in names if name in value.__globals__)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, type):
        return [*value.__bases__, *vars(value).values()] if is_by_value else []
    if isinstance(value, ModuleType):
        return []
    held = value[:_MAX_WALKED] if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return [*([type(value)] if is_by_value else []), *held]


def _has_file(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and spec.has_location and spec.name == module


class _Draws:
    """What an iteration draws from torch's generators, as torch's own iterator does: what `iter` draws, then a seed.

    Then it draws the order, which is read in parts: it may have no end.
    """

    def __init__(self, owner: DataLoader[Any], kept_seed: int | None) -> None:
        """Draw the first part. `kept_seed`: that of workers which are kept, so that none is drawn."""
        sampler = owner.sampler if owner.batch_sampler is None else owner.batch_sampler
        if isinstance(owner.dataset, IterableDataset):
            sampler = ()
        self._generators = _list_generators(owner)
        self._states = _read_states(self._generators)
        self._kept_seed = kept_seed
        self._indices = iter(sampler)
        if kept_seed is None:
            self.seed = int(torch.empty((), dtype=torch.int64).random_(generator=owner.generator).item())
            if owner.num_workers:
                self._indices = iter(sampler)  # torch does so
        else:
            self.seed = kept_seed
        first = list(itertools.islice(self._indices, 1))  # torch's samplers draw with their first index
        self._begun = _read_states(self._generators)
        self._indices = itertools.chain(first, self._indices)
        self._length = length_hint(sampler)
        self.part = -1
        self.order: list[Any] = []
        self.read_part()
        self._ended = _read_states(self._generators)

    def leave(self) -> None:
        """Take back what the sampler drew after its first index, unless others have drawn since.

        torch's samplers draw again at their end, which the original does not reach in an epoch that is left.
        """
        for generator, begun, ended in zip(self._generators, self._begun, self._ended, strict=True):
            if not torch.equal(begun, ended) and torch.equal(generator.get_state(), ended):
                generator.set_state(begun)

    def read_part(self) -> bool:
        """Read the next part of the order; False if there is none."""
        order: list[Any] = []
        count = 0
        for item in self._indices:
            order.append(item)
            count += len(item) if isinstance(item, list) else 1
            if count >= _PART_INDICES and len(order) >= self._length:
                break
        self.part += 1
        self.order = order
        self.__dict__.pop("text", None)
        return bool(order)

    @classmethod
    def draw_again(cls, owner: DataLoader[Any], text: str) -> _Draws:
        """Draw what an encoded iteration drew, and leave the generators as they are."""
        saved = json.loads(text)
        generators = _list_generators(owner)
        states = [
            torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8) for state in saved["generators"]
        ]
        current = _read_states(generators)
        try:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            drawn = cls(owner, saved["kept_seed"])
            while drawn.part < saved["part"] and drawn.read_part():
                pass
        finally:
            for generator, state in zip(generators, current, strict=True):
                generator.set_state(state)
        if drawn.digest != saved["order"]:
            raise UsageError(
                "the sampler does not repeat the order of this state; use the same dataset, `batch_size` and "
                "`drop_last`, restore the sampler's state from the start of that epoch (`set_epoch`, its own seed), or "
                "start without the state"
            )
        return drawn

    @property
    def digest(self) -> str:
        return hashlib.blake2b(pickle.dumps(self.order, protocol=5), digest_size=16).hexdigest()

    @functools.cached_property
    def text(self) -> str:
        """The part of it in a state. Accelerate asks for a state with each batch."""
        origin = {"generators": [base64.b64encode(state.numpy().tobytes()).decode() for state in self._states]}
        return json.dumps({**origin, "kept_seed": self._kept_seed, "part": self.part, "order": self.digest})


def _read_states(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    return [generator.get_state() for generator in generators]


def _list_generators(owner: DataLoader[Any]) -> list[torch.Generator]:
    """Return the generators that the sampler may draw from: torch's, the loader's and those of the samplers."""
    samplers = (owner.sampler, owner.batch_sampler, getattr(owner.batch_sampler, "sampler", None))
    found = [torch.default_generator, owner.generator, *(getattr(each, "generator", None) for each in samplers)]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
