"""The layout of an output in a file: a tree of plain values, and beside it the bytes of arrays and tensors. Pure.

The tree is encoded by msgspec, never pickled: a user who can write to a cache folder must not be able to run code.
Arrays are C-ordered and begin at multiples of 64 bytes, so that they can be used where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from stagepipe.core import SKIP, get_used_torch, is_tensor

_DTYPE_KINDS: Final = "biufcSUmM"
_MAX_DEPTH: Final = 100
_MIN_PLAIN_INT: Final = -(2**63)
_MAX_PLAIN_INT: Final = 2**64 - 1

WriteBuffer = Callable[[memoryview], int]
"""Writes bytes and returns where they begin."""

_Node = Any
"""A scalar as it is; all else is a list whose first element tells the kind."""


class UncachableOutputError(Exception):
    """An output has a value that cannot be kept; `path` leads to it."""

    def __init__(self, path: str, reason: str) -> None:
        where = f"its field `{path}`" if path else "it"
        super().__init__(f"{where} {reason}")


def encode(value: Any, write: WriteBuffer, path: str = "", depth: int = 0) -> _Node:  # noqa: C901, PLR0911 - a case for each kind of value
    """Return the tree of a value, after its arrays went to `write`. Raises UncachableOutputError."""
    kind = type(value)
    if value is None or kind in {bool, float, bytes}:
        return value
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind is int:
        return value if _MIN_PLAIN_INT <= value <= _MAX_PLAIN_INT else ["int", str(value)]
    if value is SKIP:
        return ["skip"]
    if depth > _MAX_DEPTH:
        raise UncachableOutputError(path, f"is nested more than {_MAX_DEPTH} levels deep")
    if kind in {list, tuple}:
        nodes = [encode(inner, write, f"{path}[{index}]", depth + 1) for index, inner in enumerate(value)]
        return ["list" if kind is list else "tuple", nodes]
    if kind is dict:
        keys = [encode(key, write, path, depth + 1) for key in value]
        nodes = [encode(inner, write, f"{path}.{key}".lstrip("."), depth + 1) for key, inner in value.items()]
        return ["dict", keys, nodes]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind in {np.ndarray, np.memmap}:
        return _encode_array(value, write, path)
    if isinstance(value, np.generic) and value.dtype.kind in _DTYPE_KINDS:
        return ["number", value.dtype.str, value.tobytes()]
    if is_tensor(value):
        return _encode_tensor(value, write, path)
    raise UncachableOutputError(path, f"is of type {kind.__module__}.{kind.__qualname__}")


def _encode_text(text: str) -> _Node:
    try:
        text.encode()
    except UnicodeEncodeError:  # it has a surrogate, as the name of a file that is not UTF-8
        return ["text", text.encode("utf-8", "surrogatepass")]
    return text


def _encode_array(array: np.ndarray[Any, Any], write: WriteBuffer, path: str) -> _Node:
    if array.dtype.kind not in _DTYPE_KINDS:
        raise UncachableOutputError(path, f"is an array of the dtype {array.dtype}")
    is_transposed = array.flags.f_contiguous and not array.flags.c_contiguous
    stored = np.ascontiguousarray(array.T if is_transposed else array)
    begin = write(stored.reshape(-1).view(np.uint8).data) if stored.nbytes else 0
    return ["array", array.dtype.str, list(array.shape), is_transposed, begin]


def _encode_tensor(tensor: Any, write: WriteBuffer, path: str) -> _Node:
    torch = get_used_torch()
    is_plain = torch is not None and type(tensor) is torch.Tensor and tensor.layout == torch.strided
    if torch is None or not is_plain or tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
        what = f"{type(tensor).__qualname__} on {getattr(tensor, 'device', 'an unknown device')}"
        raise UncachableOutputError(path, f"is a {what}; return a plain tensor on the CPU without gradients")
    stored = tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else None
    begin = 0 if stored is None else write(stored.data)
    return ["tensor", str(tensor.dtype).removeprefix("torch."), list(tensor.shape), begin]


def decode(node: _Node, buffer: Any) -> Any:  # noqa: C901, PLR0911 - a case for each kind of value
    """Return the value of a tree. Arrays are views of `buffer`. Raises ValueError for a tree that is damaged."""
    if not isinstance(node, list):
        return node
    match node:
        case ["int", text]:
            return int(text)
        case ["text", data]:
            return data.decode("utf-8", "surrogatepass")
        case ["skip"]:
            return SKIP
        case ["list", nodes]:
            return [decode(inner, buffer) for inner in nodes]
        case ["tuple", nodes]:
            return tuple(decode(inner, buffer) for inner in nodes)
        case ["dict", keys, nodes]:
            values = (decode(inner, buffer) for inner in nodes)
            return dict(zip((decode(key, buffer) for key in keys), values, strict=True))
        case ["complex", real, imaginary]:
            return complex(real, imaginary)
        case ["number", dtype, data]:
            return np.frombuffer(data, np.dtype(dtype))[0] if data else np.zeros((), np.dtype(dtype))[()]
        case ["array", dtype, shape, is_transposed, begin]:
            return _decode_array(np.dtype(dtype), shape, begin, buffer, is_transposed=is_transposed)
        case ["tensor", dtype, shape, begin]:
            return _decode_tensor(dtype, shape, begin, buffer)
    message = "unknown kind of value"
    raise ValueError(message)


def _decode_array(dtype: np.dtype[Any], shape: list[int], begin: int, buffer: Any, *, is_transposed: bool) -> Any:
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    flat = np.frombuffer(buffer, dtype, count, begin)
    return flat.reshape(shape[::-1]).T if is_transposed else flat.reshape(shape)


def _decode_tensor(dtype: str, shape: list[int], begin: int, buffer: Any) -> Any:
    import torch

    torch_dtype = getattr(torch, dtype)
    count = math.prod(shape)
    if not isinstance(torch_dtype, torch.dtype) or not count:
        return torch.empty(shape, dtype=torch_dtype)
    return torch.frombuffer(buffer, dtype=torch_dtype, count=count, offset=begin).reshape(shape)
