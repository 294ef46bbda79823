"""Helpers that write a pipeline's config, run it, and reduce its output to a digest."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from stagepipe import Pipeline

STAGES = "tests.support.stages"
BAD = "tests.support.bad_stages"
START_VARIABLE = "STAGEPIPE_TEST_START"
"""`spawn` makes every config of the suites start its workers with interpreters of their own, unless it says itself."""
_MAX_LISTED_NUMBERS = 100


def with_start(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the start that the environment asks for."""
    start = os.environ.get(START_VARIABLE)
    return {"start": start, **config} if start else config


def stage(uses: str, /, name: str = "", **keys: Any) -> dict[str, Any]:
    """One entry of `stages`. A plain name such as `double` is one of `tests.support.stages`."""
    path = uses if "." in uses else f"{STAGES}.{uses}"
    keys = {"as" if key == "as_" else "with" if key == "with_" else key: value for key, value in keys.items()}
    return {"name": name or uses.rpartition(".")[2].lower(), "uses": path, **keys}


def batch(size: int, **keys: Any) -> dict[str, Any]:
    return stage("stagepipe.stages.Batch", with_={"size": size, **keys})


def shuffle(size: int, **keys: Any) -> dict[str, Any]:
    return stage("stagepipe.stages.Shuffle", with_={"size": size}, **keys)


def pipeline(*stages: dict[str, Any], source: Any = 20, **keys: Any) -> dict[str, Any]:
    """A config. `source` is a number of items, or the value of the key."""
    if isinstance(source, int):
        source = {"uses": "stagepipe.sources.numbers", "with": {"count": source}}
    names: dict[str, int] = {}
    unique = []
    for entry in stages:
        name = entry["name"]
        names[name] = names.get(name, 0) + 1
        unique.append({**entry, "name": name if names[name] == 1 else f"{name}{names[name]}"})
    return with_start({"name": "test", "source": source, "stages": unique, **keys})


def plain(value: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
    """Replace arrays, tensors and dataclasses by lists, tuples, numbers and strings, to compare with `==`."""
    if type(value).__module__.partition(".")[0] in {"torch", "torchvision"} and hasattr(value, "numpy"):
        return ("tensor", str(value.dtype), _numbers(value.numpy()))
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), _numbers(value))
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ == "DataFrame":  # of pandas, which most tests do not import
        return ("DataFrame", value.to_dict("list"))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(plain(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        build = getattr(type(value), "_make", type(value))  # a namedtuple takes separate fields
        return build(plain(inner) for inner in value)
    return value


def _numbers(array: np.ndarray) -> Any:
    """Return a list; for a large array, which would be slow to list, its shape and digest."""
    if array.size <= _MAX_LISTED_NUMBERS or array.dtype.hasobject:
        return array.tolist()
    return (array.shape, hashlib.sha256(np.ascontiguousarray(array)).hexdigest())


def outputs(config: Any, *, epochs: int = 1, **keys: Any) -> list[Any]:
    """Return the items of all epochs."""
    items = []
    with Pipeline(config, **keys) as running:
        for _ in range(epochs):
            items += [plain(item) for item in running]
    return items


def digest(items: Sequence[Any]) -> str:
    """Return a short hash of the items, to compare them bit for bit."""
    return hashlib.sha256(repr(items).encode()).hexdigest()[:16]


def with_workers(config: dict[str, Any], workers: int) -> dict[str, Any]:
    """Return the config with `workers` on every stage that may have several."""
    stages = []
    for entry in config["stages"]:
        is_single = entry.get("fuse") or entry["uses"] in {"stagepipe.stages.Batch", "stagepipe.stages.Shuffle"}
        stages.append(entry if is_single else {**entry, "workers": workers})
    return {**config, "stages": stages}
