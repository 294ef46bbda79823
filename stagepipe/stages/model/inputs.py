"""Stacks the values of several items into the tensors that a module is called with. In the worker of `Module`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stagepipe.stages.optional_packages import describe_value


def to_columns(positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """Return the values of each argument, one for each item. An item that is a dict gives arguments of its keys.

    >>> to_columns([[{"x": 1}, {"x": 2}]], {})
    ([], {'x': [1, 2]})
    """
    columns = [_to_list(value) for value in positional]
    if len(columns) == 1 and columns[0] and isinstance(columns[0][0], Mapping):
        items = columns[0]
        return [], {**{key: [item[key] for item in items] for key in items[0]}, **_to_lists(named)}
    return columns, _to_lists(named)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _to_lists(named: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: _to_list(value) for name, value in named.items()}


def stack(values: list[Any], name: str) -> torch.Tensor:
    """Return the values of one argument as a tensor with a new first axis. `name` is for errors.

    Raises ValueError for values that differ in shape, TypeError for what is neither array, tensor nor number.
    """
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack([value.detach() for value in values])
        if isinstance(values[0], np.ndarray | np.generic | int | float) and values[0] is not None:
            return torch.from_numpy(np.stack(values))
    except (TypeError, ValueError, RuntimeError) as error:
        found = " and ".join(dict.fromkeys(map(describe_value, values)))
        raise ValueError(
            f"model.Module: the values of {name} cannot be stacked: {found}; resize or pad them to one shape, or set "
            "`batch: {size: 1}`"
        ) from error
    raise TypeError(
        f"model.Module: {name} is {describe_value(values[0])}; give arrays, tensors or numbers, and map the arguments "
        "of the module to fields with `field`"
    )
