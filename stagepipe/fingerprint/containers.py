"""The fingerprints of numbers and strings, of containers, arrays and tensors. Pure."""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from types import NoneType
from typing import Any, Final

import numpy as np

from stagepipe.fingerprint.model import (
    MAX_TEXT_CHARS,
    Build,
    Fingerprint,
    make_composite,
    make_exact,
    make_opaque,
)
from stagepipe.fingerprint.origin import get_display_name

SCALAR_TYPES: Final = frozenset({NoneType, type(...), bool, int, float, complex, str, bytes, range})
"""Types whose `repr` tells the value and the type."""

_MAX_SHOWN_ENTRIES: Final = 12
"""A dict of more numbers and strings is compared as a whole, which is fast."""

_MAX_SHOWN_BITS: Final = 300
"""Python refuses to write integers beyond some thousand digits in decimal."""


def fingerprint_scalar(value: Any) -> Fingerprint:
    """Return the fingerprint of a value of one of `SCALAR_TYPES`."""
    is_long = type(value) is int and value.bit_length() > _MAX_SHOWN_BITS
    return make_exact(type(value).__name__, hex(value) if is_long else repr(value))


def fingerprint_sequence(value: list[Any] | tuple[Any, ...], build: Build) -> Fingerprint:
    """Return the fingerprint of a list or tuple."""
    name = type(value).__name__
    if (flat_text := _get_flat_text(value)) is not None:
        return make_exact(name, flat_text)
    parts = [(f"element {number}", "", build(element)) for number, element in enumerate(value)]
    return _make_container(name, "[%s]" if name == "list" else "(%s)", parts)


def fingerprint_dict(value: dict[Any, Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a dict. The order of its keys does not count, as in `==`."""
    flat_text = _get_flat_text([value])
    if flat_text is not None and (len(value) > _MAX_SHOWN_ENTRIES or len(flat_text) < MAX_TEXT_CHARS):
        return make_exact("dict", flat_text[1:-1])
    keys = sorted(((build(key), key) for key in value), key=lambda pair: pair[0].digest)
    parts = [(f"key {key.text}", f"{key.text}: ", build(value[original])) for key, original in keys]
    if not all(key.is_exact for key, _ in keys):  # then their texts do not tell them apart
        parts = [(f"{label} {number}", prefix, part) for number, (label, prefix, part) in enumerate(parts)]
        parts += [(f"key {number}", "", key) for number, (key, _) in enumerate(keys)]
    return _make_container("dict", "{%s}", parts)


def fingerprint_ordered_dict(value: OrderedDict[Any, Any], build: Build) -> Fingerprint:
    """Return the fingerprint of an OrderedDict, whose order counts. A torch module has a dozen empty ones."""
    if not value:
        return make_exact("OrderedDict", "OrderedDict()")
    return make_composite("OrderedDict", "OrderedDict", [("entries", build(list(value.items())))])


def fingerprint_set(value: set[Any] | frozenset[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a set, whose order depends on the process."""
    elements = sorted(map(build, value), key=lambda element: element.digest)
    name = type(value).__name__
    parts = [(f"element {number}", "", part) for number, part in enumerate(elements)]
    return _make_container(name, "{%s}" if value and name == "set" else f"{name}(%s)", parts)


def fingerprint_array(value: np.ndarray, build: Build) -> Fingerprint:
    """Return the fingerprint of an array: dtype, shape and content. The byte order does not count, as in pickle."""
    dtype = value.dtype.newbyteorder("=")
    text = f"ndarray {dtype} {value.shape}"
    if dtype.hasobject:
        return make_composite("array", text, [("elements", build(value.tolist()))])
    native = np.ascontiguousarray(value, dtype)
    return make_opaque("array", text, native.reshape(-1).view(np.uint8).data)


def fingerprint_tensor(tensor: Any) -> Fingerprint:
    """Return the fingerprint of a dense tensor, from its bytes on the CPU. The device does not count."""
    torch = sys.modules["torch"]
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    text = f"{get_display_name(type(tensor))} {tensor.dtype} {tuple(tensor.shape)}"
    return make_opaque("tensor", text, dense.view(torch.uint8).numpy().data)


def _get_flat_text(value: Collection[Any]) -> str | None:
    """Return the `repr` of a collection of numbers and strings, or of tuples or dicts of them, sorted by key.

    Return None for others, and where a number is so long that Python refuses to write it. A million entries take
    about two seconds.
    """
    types = set(map(type, value))
    rows: Any = value
    if types == {dict} and set(map(type, itertools.chain.from_iterable(value))) == {str}:
        rows = [dict(sorted(entry.items())) for entry in value]
        types = set(map(type, itertools.chain.from_iterable(map(dict.values, rows))))
    elif types == {tuple}:
        types = set(map(type, itertools.chain.from_iterable(value)))
    if types <= SCALAR_TYPES:
        with suppress(ValueError):
            return repr(rows)
    return None


def _make_container(kind: str, template: str, parts: list[tuple[str, str, Fingerprint]]) -> Fingerprint:
    """Return the fingerprint of a container from the label, the prefix and the fingerprint of each part.

    It is exact if its parts are, and together short; `template` is then the text around them.
    """
    if all(part.is_exact for _, _, part in parts) and len(parts) < MAX_TEXT_CHARS:
        text = ", ".join(prefix + part.text for _, prefix, part in parts)
        if len(text) + len(template) <= MAX_TEXT_CHARS:
            return make_exact(kind, template % text)
    return make_composite(kind, f"{kind} of {len(parts)}", [(label, part) for label, _, part in parts])
