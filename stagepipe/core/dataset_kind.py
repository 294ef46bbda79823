"""Datasets in the sense of `torch.utils.data`: what kind one is, and one copy of it in each process of a run.

One process of a source reads the dataset's length and draws its order; the workers read its samples. Inline, or with
`fuse`, both share one copy. torch is recognized without importing it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from stagepipe.core.imported_torch import get_used_torch
from stagepipe.core.targets import DeferredArgument, build_deferred

WRAPPED_SAMPLER_ATTRIBUTES: Final = ("sampler", "batch_sampler")
"""Attributes in which torch's BatchSampler and similar classes hold the sampler that they wrap."""

_shared_datasets: Final[ContextVar[dict[str, Any] | None]] = ContextVar("shared_datasets", default=None)


@contextmanager
def share_datasets() -> Iterator[None]:
    """Build a dataset only once that several stages describe alike.

    Only for the stages of one run: the files of the next run may have changed, and a dataset may keep state.

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

    Raises TypeError if it is no dataset. Exceptions of its class or function pass through.
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
    """Whether a dataset can only be read from its start: an `IterableDataset`, or an object with `__iter__` alone.

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
    """The iterator that a sampler is or wraps, also in a config; None if the sampler can be read more than once.

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
