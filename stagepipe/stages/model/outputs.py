"""Splits what a module returns into a result for each item. In the worker of `Module`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stagepipe.core import MissingFieldError


def select_output(output: Any, names: str | Sequence[str] | None) -> Any:
    """Return the outputs of these names: one by itself, several as a dict, all without names.

    Raises KeyError for a name that the module does not return, with those that it does.
    """
    if names is None:
        return output
    wanted = [names] if isinstance(names, str) else list(names)
    available = list(output) if isinstance(output, Mapping) else []
    missing = [name for name in wanted if name not in available]
    if missing:
        found = ", ".join(f"`{name}`" for name in available) or f"a {type(output).__name__} without names"
        raise MissingFieldError(
            f"model.Module: the module returned no `{missing[0]}`; it returned {found}; correct `outputs`"
        )
    return output[names] if isinstance(names, str) else {name: output[name] for name in wanted}


def split_rows(output: Any, count: int, path: str = "output") -> list[Any]:
    """Return the result of each of `count` items: arrays, in the structure that the module returned.

    Raises TypeError for a part that is no tensor, and ValueError for one without a row for each item.
    """
    if isinstance(output, torch.Tensor):
        if output.ndim == 0 or len(output) != count:
            raise ValueError(
                f"model.Module: `{path}` has the shape {tuple(output.shape)} for {count} items; its first axis must "
                "have one entry for each"
            )
        return list(_to_numpy(output))
    if isinstance(output, Mapping):
        columns = {key: split_rows(value, count, f"{path}.{key}") for key, value in output.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(count)]
    if isinstance(output, list | tuple):
        parts = [split_rows(value, count, f"{path}[{index}]") for index, value in enumerate(output)]
        return list(zip(*parts, strict=True))
    raise TypeError(
        f"model.Module: `{path}` is of type {type(output).__name__}, not a tensor; name the outputs to keep in "
        "`outputs`"
    )


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().to("cpu")
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no bfloat16
