"""Converts values of items for files: plain arrays, flat mappings of names to arrays, and JSON. No I/O.

All sinks read arrays and tensors here, so that none silently drops a value that its format cannot store. A mask becomes
null in JSON and in Arrow. NumPy's format and Zarr have no masks and refuse masked values; they store long doubles,
structured arrays and dates unchanged. In JSON, a record of a structured array becomes an object, and a date its ISO
text in the unit of the array; a long double is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any, Final

import msgspec
import numpy as np

from stagepipe.core import is_masked_array, read_fields

_HINT: Final = "drop the field, or convert it to an array, before the sink"
_TEXT: Final = frozenset({str})
_NUMBERS: Final = frozenset({bool, int, float})
_JSON_LEAVES: Final = frozenset({str, int, float, bool, type(None), bytes, np.ndarray})
"""Types of values that contain no dict."""
_DOUBLE_BYTES: Final = {"f": 8, "c": 16}
"""The size of Python's own numbers, by NumPy's kind of dtype."""


def has_nulls(value: Any) -> bool:
    """Whether a value is an array with a masked value, an Arrow array with a null, or a list of such arrays.

    >>> has_nulls(np.ma.masked_array([1, 2], [False, True])), has_nulls(np.ma.masked_array([1, 2], [False, False]))
    (True, False)
    """
    if isinstance(value, list | tuple):
        return not _NUMBERS.issuperset(map(type, value)) and any(map(has_nulls, value))
    if is_masked_array(value):
        return bool(
            np.frombuffer(np.ma.getmaskarray(value).tobytes(), np.bool_).any()
        )  # the mask of a record has one entry per field
    return type(value).__module__.startswith("pyarrow") and bool(getattr(value, "null_count", 0))


def to_plain_array(value: Any, place: str) -> np.ndarray:
    """Return an array, tensor, number, text or image as an array that NumPy's format stores; `bytes` become uint8.

    `place` is the place of the value in messages, such as "npz: `x`".

    >>> to_plain_array(b"ab", "npz: `x`")
    array([97, 98], dtype=uint8)

    Raises TypeError for a masked value, for a value that is not an array or contains objects, and for text or a list
    whose values would change in an array.
    """
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if has_nulls(value):
        raise TypeError(
            f"{place} has masked values, and the format has no masks; before the sink, fill them with `filled`, and "
            "write the mask as a field"
        )
    try:
        array = np.asarray(read_tensor(value))
    except (TypeError, ValueError) as error:  # for example bfloat16, which NumPy lacks
        raise _make_unsupported_error(value, place) from error
    if array.dtype.kind == "T" and not hasattr(array.dtype, "na_object"):
        array = array.astype(np.str_)
    if array.dtype.hasobject:
        raise _make_unsupported_error(value, place)
    if not _is_same(array, value):
        raise TypeError(
            f"{place} is {type(value).__name__}, and an array of it would change a value; give an array, or values of "
            "one type"
        )
    return array


def read_tensor(value: Any) -> Any:
    """Return a tensor, possibly with autograd history or on a GPU, as an array; return other values unchanged.

    Raises TypeError for a tensor that NumPy cannot represent, such as bfloat16 or a sparse one.
    """
    if not hasattr(value, "detach"):
        return value
    try:
        tensor = value.detach().cpu()
        # A tensor may have an unresolved conjugate flag.
        return (tensor.resolve_conj().resolve_neg() if hasattr(tensor, "resolve_conj") else tensor).numpy()
    except RuntimeError as error:  # nested, meta, or a subclass with a mask
        raise TypeError(str(error)) from error


def _is_same(array: np.ndarray, value: Any) -> bool:
    """Whether an array still has the values of its text or list: NumPy turns [1, "a"] into two texts."""
    if isinstance(value, str):
        return bool(array.item() == value)
    if not isinstance(value, list | tuple):
        return True
    types = set(map(type, value))
    if types == _TEXT:
        return bool(array.tolist() == list(value))
    if len(types) < 2 and array.dtype.kind not in "US":  # noqa: PLR2004 - values of one type
        return True
    objects = np.array(value, object)
    return objects.shape == array.shape and bool(np.all((objects == array.astype(object)) | (array != array)))  # noqa: PLR0124 - NaN


def flatten_to_arrays(item: Any, *, sink: str = "npz") -> dict[str, np.ndarray]:
    """Return the arrays of an item. Nested names are joined by `/`; an item that is an array is called `data`.

    Arrays, numbers and strings keep their dtype and shape. torch tensors and PIL images become arrays, `bytes` become
    uint8 arrays, a list of strings or of numbers becomes one array; any other list becomes one array per entry. `sink`
    is the name of the sink, for messages.

    >>> flatten_to_arrays({"x": 1.5, "meta": {"name": "a"}})
    {'x': array(1.5), 'meta/name': array('a', dtype='<U1')}

    Raises TypeError, with the field, for a value that such a file cannot store, and ValueError for two fields with the
    same name.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, array in _iter_leaves(item, "", sink):
        if name in arrays:
            raise ValueError(f"{sink}: two fields are called `{name}` once nested names are joined by `/`; rename one")
        arrays[name] = array
    return arrays


def flatten_rows(items: Sequence[Any], *, sink: str) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each item of a part, for stacking them by field.

    >>> flatten_rows([{"x": 1}, {"x": 2}], sink="zarr")
    [{'x': array(1)}, {'x': array(2)}]

    Raises ValueError for an item without fields, and for one with different fields than the first; also the errors of
    `flatten_to_arrays`.
    """
    rows = [flatten_to_arrays(item, sink=sink) for item in items]
    for row, arrays in enumerate(rows):
        if not arrays:
            raise ValueError(f"{sink}: row {row} of the part has no fields to write; drop it before the sink")
        if arrays.keys() != rows[0].keys():
            raise ValueError(
                f"{sink}: row {row} of the part has the fields {', '.join(arrays)}, the first has "
                f"{', '.join(rows[0])}; give all items the same fields"
            )
    return rows


def _iter_leaves(value: Any, path: str, sink: str) -> Iterator[tuple[str, np.ndarray]]:
    children = _get_children(value)
    if children is None:
        yield path or "data", to_plain_array(value, f"{sink}: `{path or 'item'}`")
        return
    for key, child in children:
        yield from _iter_leaves(child, f"{path}/{key}" if path else str(key), sink)


def _get_children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the named children of a structure; None for a leaf."""
    fields = read_fields(value)
    if fields is not None:
        return list(fields.items())
    if isinstance(value, list | tuple) and not _is_uniform(value):
        return list(enumerate(value))
    return None


def _is_uniform(entries: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(entry, str) for entry in entries) or all(isinstance(entry, Number) for entry in entries)


def _make_unsupported_error(value: Any, place: str) -> TypeError:
    type_name = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    return TypeError(f"{place} is of type {type_name}, which the format cannot hold; {_HINT}")


def stack_rows(name: str, arrays: Sequence[np.ndarray], *, sink: str) -> np.ndarray:
    """Stack the arrays of a field, one per item of a part, as rows of one array. Texts may differ in length.

    Raises ValueError for an array whose shape or dtype differs from the first.
    """
    first = arrays[0]
    for row, array in enumerate(arrays):
        is_same_kind = array.dtype == first.dtype or array.dtype.kind == first.dtype.kind == "U"
        if array.shape != first.shape or not is_same_kind:
            raise ValueError(
                f"{sink}: field `{name}`, row {row} of the part: shape {array.shape} and dtype {array.dtype}, the "
                f"first has {first.shape} and {first.dtype}; convert or pad it in a stage before the sink"
            )
    return np.stack(arrays)


def encode_json(value: Any, encoder: msgspec.json.Encoder) -> bytes:
    """Return a value as JSON; `encoder` has `to_json_value` as its hook.

    Bytes become base64, sets lists, and dataclasses objects. NaN and infinity become `NaN` and `Infinity`.

    >>> encode_json({"x": np.ma.masked_array([1, 2], [False, True])}, msgspec.json.Encoder(enc_hook=to_json_value))
    b'{"x":[1,null]}'

    Raises TypeError and ValueError for values that JSON cannot store.
    """
    line = encoder.encode(value)
    _require_distinct_keys(value)
    if b"null" not in line:  # msgspec also writes null for NaN
        return line
    plain = msgspec.to_builtins(value, enc_hook=to_json_value, str_keys=True)
    try:
        json.dumps(plain, allow_nan=False)
    except ValueError:  # it has NaN or infinity
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    return line


def _require_distinct_keys(value: Any) -> None:
    """Raise ValueError for a dict with two keys of the same text: readers would see only the last one."""
    if isinstance(value, dict):
        if not _TEXT.issuperset(map(type, value)):
            texts = msgspec.to_builtins(dict.fromkeys(value), enc_hook=to_json_value, str_keys=True)
            if len(texts) < len(value):
                repeated = [repr(key) for key in value if type(key) is not str and str(key) in value]
                raise ValueError(
                    f"two keys of a dict become the same string ({', '.join(repeated)}); give them other names"
                )
        parts: Any = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif hasattr(value, "tolist"):
        return
    else:  # such as a dataclass
        parts = (msgspec.to_builtins(value, enc_hook=to_json_value),)
    if not _JSON_LEAVES.issuperset(map(type, parts)):
        for part in parts:
            if type(part) not in _JSON_LEAVES:
                _require_distinct_keys(part)


def to_json_value(value: Any) -> Any:
    """Convert NumPy's arrays and numbers and tensors to values that JSON stores. Raises TypeError for others."""
    if isinstance(value, np.ndarray | np.generic):
        return _array_to_json(value)
    try:
        if hasattr(value, "detach"):  # a tensor: use its own `tolist`, because NumPy lacks bfloat16
            return value.detach().cpu().tolist()
        if hasattr(value, "tolist"):
            return value.tolist()
    except RuntimeError as error:  # sparse, nested, quantized
        raise _make_json_error(f"{type(value).__name__} ({error})") from error
    raise _make_json_error(type(value).__name__)


def _make_json_error(name: str) -> TypeError:
    return TypeError(f"JSON cannot hold {name}; drop the field, or convert it before the sink")


def _array_to_json(value: Any) -> Any:
    kind = value.dtype.kind
    names = value.dtype.names
    if names is not None:
        return [*map(_array_to_json, value)] if value.ndim else {name: value[name] for name in names}
    if value.dtype.itemsize > _DOUBLE_BYTES.get(kind, value.dtype.itemsize):
        raise TypeError(f"JSON cannot hold {value.dtype}; convert it to float64 before the sink")
    if kind == "M":  # `tolist` returns numbers for nanoseconds and for years after 9999
        texts = np.ma.masked_array(np.datetime_as_string(value), np.isnat(value) | np.ma.getmaskarray(value))
        return texts.tolist()
    if kind == "m" and _has_integers(value.tolist()):
        raise TypeError(
            f"JSON has no text for {value.dtype}; convert it to `timedelta64[us]`, or to a number, before the sink"
        )
    return value.tolist()


def _has_integers(value: Any) -> bool:
    return any(map(_has_integers, value)) if isinstance(value, list) else isinstance(value, int)
