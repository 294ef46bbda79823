"""Datasets in the sense of `torch.utils.data`: their kind, one copy for each process of a run, and lists of samples.

One process of a source reads the dataset's length and draws its order; the workers read its samples. Inline, or with
`fuse`, both share one copy. torch is recognized without importing it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, repeat
from typing import Any, Final, Self

from stagepipe.core.process import get_used_torch
from stagepipe.core.stage_context import WorkerIdentity, stage_locals
from stagepipe.core.targets import DeferredArgument, build_deferred

WRAPPED_SAMPLER_ATTRIBUTES: Final = ("sampler", "batch_sampler")
"""Attributes in which torch's BatchSampler and similar classes hold the sampler that they wrap."""

_shared_datasets: Final[ContextVar[dict[str, Any] | None]] = ContextVar("shared_datasets", default=None)


@contextmanager
def share_datasets() -> Iterator[None]:
    """Build a dataset only once if several stages describe it in the same way.

    Use it only for the stages of one run: the files of the next run may have changed, and a dataset may keep state.

    >>> value = DeferredArgument({"uses": "builtins.bytearray", "with": {}}, None)
    >>> with share_datasets():
    ...     build_dataset(value) is build_dataset(value)
    True
    >>> build_dataset(value) is build_dataset(value)
    False
    """
    token = _shared_datasets.set({})
    try:
        yield
    finally:
        _shared_datasets.reset(token)


def build_dataset(value: Any) -> Any:
    """The dataset that an argument describes, built once within `share_datasets`; or the object itself.

    Raises TypeError if it is not a dataset. Exceptions of its class or function pass through.
    """
    shared = _shared_datasets.get()
    description = None if shared is None else _describe(value)
    if shared is not None and description in shared:
        return shared[description]
    dataset = build_deferred(value)
    check_dataset(dataset)
    if shared is not None and description is not None:
        shared[description] = dataset
    return dataset


def _describe(value: Any) -> str | None:
    """The description of the dataset as JSON; None if it contains objects, which cannot be compared."""
    if not isinstance(value, DeferredArgument) or not isinstance(value.value, Mapping):
        return None
    try:
        return json.dumps([value.value, str(value.config_dir)], sort_keys=True)
    except TypeError:
        return None


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be read from its start: an `IterableDataset`, or an iterable without random access.

    >>> is_stream([3, 4]), is_stream(map(abs, [3]))
    (False, True)
    """
    return is_stream_class(type(dataset))


def is_stream_class(cls: type) -> bool:
    """`is_stream` for a class.

    >>> is_stream_class(dict)
    False
    """
    torch = get_used_torch("torch.utils.data")
    if torch is not None and issubclass(cls, torch.IterableDataset):
        return True
    return hasattr(cls, "__iter__") and not (hasattr(cls, "__getitem__") and hasattr(cls, "__len__"))


def check_dataset(dataset: Any) -> None:
    """Raise TypeError if `dataset` has neither `__getitem__` nor `__iter__`."""
    cls = type(dataset)
    if not (hasattr(cls, "__getitem__") or hasattr(cls, "__iter__")):
        message = (
            f"dataset: found {cls.__qualname__}, which has neither `__getitem__` nor `__iter__`; name a dataset "
            "class, or a function that returns a dataset"
        )
        raise TypeError(message)


def find_iterator(sampler: Any) -> Iterator[Any] | None:
    """The one-time iterator that a sampler is or wraps, also in a config; None if the sampler can be read again.

    >>> find_iterator([3, 1]), find_iterator(iter([3, 1])) is None
    (None, False)
    """
    if isinstance(sampler, DeferredArgument):
        return find_iterator(sampler.value)
    if isinstance(sampler, Iterator):
        return sampler
    if isinstance(sampler, Mapping):
        inner: Mapping[Any, Any] = sampler.get("with") or {} if "uses" in sampler else {}
    else:
        inner = getattr(sampler, "__dict__", {})
    found = (find_iterator(inner[name]) for name in WRAPPED_SAMPLER_ATTRIBUTES if inner.get(name) is not None)
    return next((iterator for iterator in found if iterator is not None), None)


class BatchIterator(Iterator[list[Any]]):
    """Yields lists of `size` samples. It never reads ahead of the current list.

    The last list may be shorter; `drop_last` drops it.

    >>> list(BatchIterator(iter("abcde"), 2)), list(BatchIterator(iter("abcde"), 2, drop_last=True))
    ([['a', 'b'], ['c', 'd'], ['e']], [['a', 'b'], ['c', 'd']])
    """

    def __init__(self, samples: Iterator[Any], size: int, *, drop_last: bool = False) -> None:
        self.samples = samples
        self._size = size
        self._drop_last = drop_last

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Any]:
        pulled = map(next, repeat(self.samples))  # another `iter` could restart a dataset that is its own iterator
        batch = list(islice(pulled, self._size))
        if not batch or (self._drop_last and len(batch) < self._size):
            raise StopIteration
        return batch


class StatefulBatchIterator(BatchIterator):
    """A BatchIterator whose iterator saves and loads its state. Between two lists, the two states are equal."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the samples' iterator."""
        state: dict[str, Any] = self.samples.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of the samples' iterator."""
        self.samples.load_state_dict(state)  # type: ignore[attr-defined]


_TORCH_MODULE: Final = "torch.utils.data._utils.worker"
"""The module that stores the worker info, in `_worker_info`. torchdata sets it there too."""


def set_worker_info(identity: WorkerIdentity, dataset: Any) -> Any:
    """Let `torch.utils.data.get_worker_info()` describe this worker. Returns the previous worker info."""
    module: Any = sys.modules.get(_TORCH_MODULE)
    if module is None:
        return None
    before = module._worker_info  # noqa: SLF001 - there is no public way
    module._worker_info = module.WorkerInfo(  # noqa: SLF001
        id=identity.worker,
        num_workers=identity.worker_count,
        seed=identity.seed + identity.worker,
        dataset=dataset,
    )
    return before


@contextmanager
def show_worker_info(identity: WorkerIdentity, dataset: Any) -> Iterator[None]:
    """Let `get_worker_info()` describe this worker inside a `with` block.

    >>> with show_worker_info(WorkerIdentity(0, 2, seed=17), dataset=[1, 2]):
    ...     pass
    """
    before = set_worker_info(identity, dataset)
    try:
        yield
    finally:
        module: Any = sys.modules.get(_TORCH_MODULE)
        if module is not None:
            module._worker_info = before  # noqa: SLF001


def call_worker_init_fn(worker_init_fn: Callable[[int], Any] | None, dataset: Any) -> None:
    """Call a DataLoader's `worker_init_fn` with the number of this worker. `get_worker_info()` describes it meanwhile.

    Inline there is no worker, so the function is not called, as with `num_workers=0`.
    """
    identity = stage_locals.worker_identity
    if worker_init_fn is not None and identity is not None:
        with show_worker_info(identity, dataset):
            worker_init_fn(identity.worker)
