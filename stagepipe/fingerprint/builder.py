"""Builds the fingerprint of any value, one function per kind of value. Pure."""

from __future__ import annotations

import enum
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from stagepipe.core import is_tensor
from stagepipe.fingerprint.classes import fingerprint_class
from stagepipe.fingerprint.containers import (
    SCALAR_TYPES,
    fingerprint_array,
    fingerprint_dict,
    fingerprint_ordered_dict,
    fingerprint_scalar,
    fingerprint_sequence,
    fingerprint_set,
    fingerprint_tensor,
)
from stagepipe.fingerprint.functions import (
    fingerprint_function,
    fingerprint_method,
    fingerprint_partial,
    fingerprint_property,
    fingerprint_wrapper,
)
from stagepipe.fingerprint.model import Build, Fingerprint, make_exact, make_unknown
from stagepipe.fingerprint.objects import fingerprint_member, fingerprint_object
from stagepipe.fingerprint.origin import get_display_name

_MAX_DEPTH: Final = 60
"""Maximum nesting of values. A level takes at most eight Python calls, of the thousand that Python allows."""

_MAX_CODE_DEPTH: Final = 30
"""Maximum nesting at which the code of functions and classes counts. Deeper ones count by name."""

_FUNCTIONS: Final[dict[type, Callable[[Any, Build], Fingerprint]]] = {
    list: fingerprint_sequence,
    tuple: fingerprint_sequence,
    dict: fingerprint_dict,
    OrderedDict: fingerprint_ordered_dict,
    set: fingerprint_set,
    frozenset: fingerprint_set,
    np.ndarray: fingerprint_array,
    np.memmap: fingerprint_array,
    FunctionType: fingerprint_function,
    MethodType: fingerprint_method,
    partial: fingerprint_partial,
    staticmethod: fingerprint_wrapper,
    classmethod: fingerprint_wrapper,
    type(lru_cache(len)): fingerprint_wrapper,
    property: fingerprint_property,
    cached_property: fingerprint_property,
}


def compute_fingerprint(value: Any) -> Fingerprint:
    """Return the fingerprint of any value. Never raises: `unknown` says which part has none, and why.

    Arrays are hashed at the speed of SHA-256. Numbers and strings in a list, or in a list of tuples or dicts, take at
    most a microsecond each, other objects 20 us, a function or class of some lines 100 us.

    >>> compute_fingerprint([1, 2.0]).text
    '[1, 2.0]'
    >>> compute_fingerprint(open).digest == compute_fingerprint(print).digest
    False
    """
    return _FingerprintBuilder().build(value)


class _FingerprintBuilder:
    """Builds the fingerprint of one value and of all values in it."""

    def __init__(self) -> None:
        self._finished: dict[int, tuple[Any, Fingerprint]] = {}
        """By id. The values are kept, so that no id is used twice."""
        self._open: dict[int, int] = {}
        """Depth of the values whose parts are being built, by id."""

    def build(self, value: Any) -> Fingerprint:
        """Return the fingerprint of a value, built once."""
        if type(value) in SCALAR_TYPES:
            return fingerprint_scalar(value)
        if id(value) in self._finished:
            return self._finished[id(value)][1]
        if id(value) in self._open:
            return make_exact("cycle", f"the object {len(self._open) - self._open[id(value)]} levels up")
        if len(self._open) >= _MAX_DEPTH:
            return make_unknown(f"nested more than {_MAX_DEPTH} levels deep")
        if len(self._open) >= _MAX_CODE_DEPTH and isinstance(value, FunctionType | type):
            return make_exact("deep code", get_display_name(value))
        self._open[id(value)] = len(self._open)
        try:
            result = self._dispatch(value)
        except Exception as error:  # noqa: BLE001 - of `__reduce_ex__`, `__getstate__` or a property of any class
            name = type(value).__name__
            result = make_unknown(str(error) if name in str(error) else f"{name} object: {error}")
        finally:
            del self._open[id(value)]
        self._finished[id(value)] = (value, result)
        return result

    def _dispatch(self, value: Any) -> Fingerprint:
        function = _FUNCTIONS.get(type(value)) or _find_function(value)
        return _fingerprint_by_name(value) if function is None else function(value, self.build)


def _find_function(value: Any) -> Callable[[Any, Build], Fingerprint] | None:
    """Return the function for a value of a type that is not listed; None for a value that one text tells."""
    if isinstance(value, type):
        return fingerprint_class
    if isinstance(value, enum.Enum):
        return fingerprint_member
    is_named = isinstance(value, (ModuleType, PurePath, np.generic, *_get_generator_types())) or is_tensor(value)
    return None if is_named else fingerprint_object


def _fingerprint_by_name(value: Any) -> Fingerprint:
    """Return the fingerprint of a value without parts."""
    if isinstance(value, ModuleType):
        return make_exact("module", f"module {value.__name__}")
    if isinstance(value, PurePath):
        return make_exact("path", f"{type(value).__name__}({str(value)!r})")
    if isinstance(value, np.generic):
        return make_exact(str(value.dtype), repr(value))
    return fingerprint_tensor(value) if is_tensor(value) else make_exact("generator", get_display_name(value))


def _get_generator_types() -> tuple[type, ...]:
    """Return the types of random generators. torch's is known only once torch is imported."""
    torch = sys.modules.get("torch")
    torch_types = () if torch is None else (torch.Generator,)
    return (random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, *torch_types)
