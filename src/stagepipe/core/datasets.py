"""Datasets in the sense of `torch.utils.data`: what kind one is, and one copy of it in each process.

The source reads a dataset's length and the stage `dataset` its samples; inline, or where the stage is fused into the
source's process, both are in one process and share the copy. torch is recognised without importing it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from stagepipe.core.late import build_late
from stagepipe.core.targets import Late

_built: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()


def dataset_of(value: Any) -> Any:
    """The dataset that an argument names, built once in this process while somebody holds it; or the object itself.

    Raises TypeError for what is no dataset; what its class or function raises passes through.
    """
    name = _name_of(value)
    found = None if name is None else _built.get(name)
    if found is None:
        found = build_late(value)
        check_dataset(found)
        if name is not None:
            with suppress(TypeError):  # not everything can be referred to weakly: a list
                _built[name] = found
    return found


def _name_of(value: Any) -> str | None:
    """What it is built from, where that is all text and numbers; an object among it may differ from another."""
    if not isinstance(value, Late) or not isinstance(value.value, Mapping):
        return None
    try:
        return json.dumps([value.value, str(value.config_dir)], sort_keys=True)
    except TypeError:
        return None


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be read from its start: torch's `IterableDataset`, or what has `__iter__` alone.

    >>> is_stream([3, 4]), is_stream(map(abs, [3]))
    (False, True)
    """
    return is_stream_class(type(dataset))


def is_stream_class(kind: type) -> bool:
    """The same of a class.

    >>> is_stream_class(dict)
    False
    """
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and issubclass(kind, torch.IterableDataset):
        return True
    return hasattr(kind, "__iter__") and not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__"))


def check_dataset(dataset: Any) -> None:
    """TypeError if `dataset` has neither `__getitem__` nor `__iter__`."""
    kind = type(dataset)
    if not (hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")):
        message = (
            f"dataset: found {kind.__qualname__}, which has neither `__getitem__` nor `__iter__`; name a dataset "
            "class, or a function that returns a dataset"
        )
        raise TypeError(message)
