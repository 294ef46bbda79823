"""How tests write a pipeline down, run it, and say what came out in one word."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from stagepipe import Pipeline

STAGES = "tests.zoo.stages"
BAD = "tests.zoo.bad"
_MANY = 100


def stage(uses: str, /, name: str = "", **keys: Any) -> dict[str, Any]:
    """One entry of `stages`: `double` is taken from the zoo, a dotted path from where it says."""
    path = uses if "." in uses else f"{STAGES}.{uses}"
    keys = {"as" if key == "as_" else "with" if key == "with_" else key: value for key, value in keys.items()}
    return {"name": name or uses.rpartition(".")[2].lower(), "uses": path, **keys}


def batch(size: int, **keys: Any) -> dict[str, Any]:
    return stage("stagepipe.stages.Batch", with_={"size": size, **keys})


def shuffle(size: int, **keys: Any) -> dict[str, Any]:
    return stage("stagepipe.stages.Shuffle", with_={"size": size}, **keys)


def pipeline(*stages: dict[str, Any], source: Any = 20, **keys: Any) -> dict[str, Any]:
    """A config; `source` is a count of numbers, or what stands there."""
    if isinstance(source, int):
        source = {"uses": "stagepipe.sources.numbers", "with": {"count": source}}
    names: dict[str, int] = {}
    unique = []
    for each in stages:
        names[each["name"]] = names.get(each["name"], 0) + 1
        number = names[each["name"]]
        unique.append({**each, "name": each["name"] if number == 1 else f"{each['name']}{number}"})
    return {"name": "test", "source": source, "stages": unique, **keys}


def plain(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Lists, tuples, numbers and texts in the place of arrays, tensors and dataclasses: to be compared with `==`."""
    if type(value).__module__.partition(".")[0] in {"torch", "torchvision"} and hasattr(value, "numpy"):
        return ("tensor", str(value.dtype), _numbers(value.numpy()))
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), _numbers(value))
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(plain(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(inner) for inner in value)
    return value


def _numbers(array: np.ndarray) -> Any:
    """As a list; of many, which would take longer than all the rest, shape and digest."""
    if array.size <= _MANY or array.dtype.hasobject:
        return array.tolist()
    return (array.shape, hashlib.sha256(np.ascontiguousarray(array)).hexdigest())


def outputs(config: Any, *, epochs: int = 1, **keys: Any) -> list[Any]:
    """What comes out, over all epochs."""
    found = []
    with Pipeline(config, **keys) as running:
        for _ in range(epochs):
            found += [plain(item) for item in running]
    return found


def digest(items: Sequence[Any]) -> str:
    """One word for what came out: bit for bit the same, or not."""
    return hashlib.sha256(repr(items).encode()).hexdigest()[:16]


def with_workers(config: dict[str, Any], workers: int) -> dict[str, Any]:
    """The same with so many workers of every stage that can have them."""
    stages = []
    for each in config["stages"]:
        alone = each.get("fuse") or each["uses"] in {"stagepipe.stages.Batch", "stagepipe.stages.Shuffle"}
        stages.append(each if alone else {**each, "workers": workers})
    return {**config, "stages": stages}
