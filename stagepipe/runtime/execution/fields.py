"""`field`, `as` and `into`: apply a function to a field of an item, or call it with fields as its arguments.

The FieldAdapter wraps the stage's target. `as` converts a field's value. An image is HWC as an array and CHW as a
tensor, as in torchvision. The three formats convert into each other:

- `numpy`: a PIL image becomes `(H, W)` or `(H, W, C)`; an image tensor `(C, H, W)` becomes a view `(H, W, C)`.
- `tensor`: a PIL image becomes `(C, H, W)`, as in `torchvision.transforms.v2.functional.pil_to_tensor`. An image array
  `(H, W, C)` becomes a view `(C, H, W)`, and a uint8 array `(H, W)` a view `(1, H, W)`, as in `to_image`.
- `pil`: a uint8 image array or image tensor becomes a PIL image.

An image array has three axes, the last of length 1, 3 or 4; in an image tensor it is the first. The dtype is uint8,
uint16 or floating point. Other arrays and tensors keep their axes. `bytes` become a 1-D uint8 array or tensor. Values
are copied only from PIL images and from a GPU.

torchvision's transforms return NumPy arrays unchanged, because they do not treat an array as an image. Such transforms
are found before the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from types import GeneratorType
from typing import Any, Literal

import numpy as np

from stagepipe.core import (
    SKIP,
    get_field,
    import_extra,
    is_generator,
    is_pil_image,
    is_tensor,
    with_field,
)

ValueFormat = Literal["numpy", "tensor", "pil"]

_IMAGE_CHANNEL_COUNTS = (1, 3, 4)  # grey, RGB, RGBA
_IMAGE_DTYPES = ("uint8", "uint16", "float16", "bfloat16", "float32", "float64")
_IMAGE_NDIM = 3


class NotConvertibleError(TypeError):
    """A value that cannot be converted to the requested format."""


def convert(value: Any, as_: ValueFormat, field_name: str) -> Any:
    """Return `value` in the format `as_`, or itself if it has that format. `field_name` is for the error.

    >>> convert(b"ab", "numpy", "data")
    array([97, 98], dtype=uint8)

    Raises NotConvertibleError (a TypeError), with the value's type, shape and dtype.
    """
    try:
        return {"numpy": _as_numpy, "tensor": _as_tensor, "pil": _as_pil}[as_](value)
    except NotConvertibleError as error:
        raise NotConvertibleError(f"`{field_name}` is {error}, which `as={as_}` cannot convert") from None


def _is_image(value: Any, channel_axis: int) -> bool:
    dtype = str(value.dtype).removeprefix("torch.")
    return value.ndim == _IMAGE_NDIM and value.shape[channel_axis] in _IMAGE_CHANNEL_COUNTS and dtype in _IMAGE_DTYPES


def _make_not_convertible_error(value: Any) -> NotConvertibleError:
    shape = f" of shape {tuple(value.shape)} and dtype {value.dtype}" if hasattr(value, "dtype") else ""
    return NotConvertibleError(f"of type {type(value).__name__}{shape}")


def _as_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if is_pil_image(value):
        return np.asarray(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if is_tensor(value):
        return _tensor_to_numpy(value.permute(1, 2, 0) if _is_image(value, 0) else value)
    raise _make_not_convertible_error(value)


def _tensor_to_numpy(tensor: Any) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError:  # NumPy has no bfloat16
        raise _make_not_convertible_error(tensor) from None


def _as_tensor(value: Any) -> Any:
    if is_tensor(value):
        return value
    if is_pil_image(value):
        return _to_channels_first(_array_to_tensor(np.array(value)))
    if isinstance(value, bytes):
        return _array_to_tensor(np.frombuffer(value, np.uint8))
    if not isinstance(value, np.ndarray):
        raise _make_not_convertible_error(value)
    is_image = _is_image(value, -1) or (value.ndim == _IMAGE_NDIM - 1 and value.dtype == np.uint8)
    return _to_channels_first(_array_to_tensor(value)) if is_image else _array_to_tensor(value)


def _to_channels_first(tensor: Any) -> Any:
    return tensor.permute(2, 0, 1) if tensor.ndim == _IMAGE_NDIM else tensor[None]


def _array_to_tensor(array: np.ndarray) -> Any:
    """Return a tensor over the array's memory, without torch's warning about a read-only array.

    stagepipe itself reports a write into a read-only input.
    """
    torch = import_extra("torch", "torch", "`as: tensor`")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        try:
            return torch.from_numpy(array)
        except TypeError:  # text, objects, dates
            raise _make_not_convertible_error(array) from None
        except ValueError:  # negative strides, of a flipped view
            return torch.from_numpy(np.ascontiguousarray(array))


def _as_pil(value: Any) -> Any:
    if is_pil_image(value):
        return value
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        raise _make_not_convertible_error(value)
    array = _as_numpy(value)
    is_grey = array.ndim == _IMAGE_NDIM - 1
    if array.dtype != np.uint8 or not (is_grey or _is_image(array, -1)):
        raise _make_not_convertible_error(value)
    return _array_to_pil(array if is_grey or array.shape[-1] > 1 else array[..., 0])


def _array_to_pil(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image)


CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: by position, by name."""


def _convert_each(values: Mapping[str, Any], as_: ValueFormat | None) -> dict[str, Any]:
    """Convert each convertible value (an image may come with a label). Raises if none is convertible."""
    if as_ is None:
        return dict(values)
    converted, errors = dict(values), []
    for name, value in values.items():
        try:
            converted[name] = convert(value, as_, name)
        except NotConvertibleError as error:
            errors.append(str(error))
    if errors and len(errors) == len(values):
        raise NotConvertibleError("; ".join(errors))
    return converted


def _put_fields(item: Any, field_of_argument: Mapping[str, str], result: Any) -> Any:
    """Return a copy of the item with the result's keys, or with the result in the only mapped field."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            field = field_of_argument.get(key)
            is_new = field is None and isinstance(item, Mapping)  # the key itself, which may not be a string
            item = {**item, key: value} if is_new else with_field(item, field or key, value)
        return item
    if len(field_of_argument) == 1:
        return with_field(item, next(iter(field_of_argument.values())), result)
    arguments = ", ".join(field_of_argument)
    raise TypeError(
        f"the function returned an object of type {type(result).__name__}, and `field` maps several arguments "
        f"({arguments}): the field to replace is ambiguous; return a dict of fields, map one argument, or "
        "name a field in `into`"
    )


_ARRAY_TRANSFORM_NAMES = frozenset({"ToImage", "ToTensor", "ToPILImage", "Lambda", "Identity"})
_CONTAINER_TRANSFORM_NAMES = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder"})


def find_array_ignoring_transform(function: Any) -> str | None:
    """Return the name of the torchvision transform that would leave a NumPy array untouched, or None.

    In a container the first transform counts, because it receives the array. The answer depends only on the type, so
    random transforms are found too.

    >>> find_array_ignoring_transform(print) is None
    True
    """
    cls = type(function)
    if not cls.__module__.startswith("torchvision.transforms"):
        return None
    if cls.__name__ in _CONTAINER_TRANSFORM_NAMES:
        return find_array_ignoring_transform(next(iter(function.transforms), None))
    return None if cls.__name__ in _ARRAY_TRANSFORM_NAMES else cls.__name__


def refuse_ignored_arrays(function: Any, values: Mapping[str, Any]) -> None:
    """Raise TypeError if `function` would leave the arrays among `values` untouched and gets no other values."""
    arrays = [name for name, value in values.items() if isinstance(value, np.ndarray)]
    if not arrays or any(is_tensor(value) or is_pil_image(value) for value in values.values()):
        return
    transform = find_array_ignoring_transform(function)
    if transform is not None:
        names = ", ".join(f"`{name}`" for name in arrays)
        raise TypeError(
            f"{transform} leaves the NumPy array {names} untouched: torchvision's transforms work on tensors, "
            "tv_tensors and PIL images; set `as=tensor` or `as=pil`"
        )


class FieldAdapter:
    """Calls `function` with the fields of `field`, converted to `as_`. Puts the result into a copy of the item.

    `field="image"` calls `function(item["image"])`, and the result replaces that field.

    `field={"image": "img"}` calls `function(image=item["img"])`. If the result is a mapping, a key that is a mapped
    argument replaces its field, and any other key becomes a field. Any other result replaces the field, if only one
    argument is mapped. If the function returns None, so does the adapter; with `allow_none`, None replaces the field.

    `field=None` converts the whole item: each field of a dict that can be converted, or the item itself.

    `into="mask"` puts the whole result into that field instead, which the item may lack. Without `field`, the function
    is called with the item.

    `stagepipe.runtime.execution.fields` describes `as_`. The item itself is never changed. SKIP is passed on. Each
    result of a generator is put into a separate copy of the item.

    `batched=True` is for a stage with a `batch`, which is called with a list of items: `function` gets a list in place
    of each value. It returns a list with one result per item, or a mapping of columns (as a tokenizer does).

    `label` is the stage's name, for errors.

    >>> halve = FieldAdapter(lambda x: x / 2, "x", None, "halve")
    >>> halve({"x": 3, "y": 0})
    {'x': 1.5, 'y': 0}
    >>> FieldAdapter(abs, "x", None, "abs", into="y")({"x": -3})
    {'x': -3, 'y': 3}

    Raises TypeError if the item has no fields, if a value cannot be converted, or if a torchvision transform would
    leave a NumPy array unchanged (checked on the first item); KeyError for a missing field; ValueError if the number of
    results differs from the number of items in a batch.
    """

    def __init__(
        self,
        function: Any,
        field: str | Mapping[str, str] | None,
        as_: ValueFormat | None,
        label: str,
        *,
        into: str | None = None,
        batched: bool = False,
        allow_none: bool = False,
    ) -> None:
        self.function = function
        self.label = label
        self.is_batched = batched
        self._field = field
        self._as = as_
        self._target_field = field if into is None else into
        """The field for the result; None if the result is the new item."""
        self._allows_none = allow_none
        self._is_first_item = True

    @property
    def is_generator(self) -> bool:
        """Whether the function is a generator function, which yields many items; never for a batch."""
        return not self.is_batched and is_generator(self.function)

    def __call__(self, item: Any) -> Any:
        """Return the new item; an iterator of items for a generator; a list of items for a list."""
        if self.is_batched:
            return self._call_batched(item)
        positional, named = self._take_arguments(item)
        result = self.function(*positional, **named)
        return self._put_each(item, result) if isinstance(result, GeneratorType) else self._put(item, result)

    def _put(self, item: Any, result: Any) -> Any:
        field = self._target_field
        if field is None or result is SKIP or (result is None and not self._allows_none):
            return result
        return with_field(item, field, result) if isinstance(field, str) else _put_fields(item, field, result)

    def _put_each(self, item: Any, results: Iterator[Any]) -> Iterator[Any]:
        for result in results:
            yield self._put(item, result)

    def _call_batched(self, items: list[Any]) -> list[Any]:
        calls = [self._take_arguments(item) for item in items]
        positional = [list(values) for values in zip(*(args for args, _ in calls), strict=True)]
        named = {name: [kwargs[name] for _, kwargs in calls] for name in calls[0][1]} if calls else {}
        results = _split_results(self.function(*positional, **named), len(items), self.label)
        return [self._put(item, result) for item, result in zip(items, results, strict=True)]

    def _take_arguments(self, item: Any) -> CallArguments:
        """Return the converted arguments. On the first item, check that a torchvision transform can work on them."""
        field, as_ = self._field, self._as
        if isinstance(field, Mapping):
            named = _convert_each({argument: get_field(item, name) for argument, name in field.items()}, as_)
            self._check_first_item(named)
            return (), named
        name = "item" if field is None else field
        value = item if field is None else get_field(item, field)
        if as_ is not None:
            is_split = field is None and isinstance(item, Mapping)
            value = _convert_each(value, as_) if is_split else convert(value, as_, name)
        self._check_first_item(value if isinstance(value, Mapping) else {name: value})
        return (value,), {}

    def _check_first_item(self, arguments: Mapping[str, Any]) -> None:
        if self._is_first_item:
            refuse_ignored_arrays(self.function, arguments)
            self._is_first_item = False


def _split_results(results: Any, count: int, label: str) -> list[Any]:
    if isinstance(results, Mapping):
        columns = {name: _split_results(column, count, f"{label}, `{name}`") for name, column in results.items()}
        return [{name: column[row] for name, column in columns.items()} for row in range(count)]
    rows = list(results)
    if len(rows) != count:
        raise ValueError(f"{label}: {len(rows)} results for a batch of {count} items; return one per item, in order")
    return rows
