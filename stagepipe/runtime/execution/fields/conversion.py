"""`as`: converts a field's value. An image is HWC as an array and CHW as a tensor, as in torchvision.

In workers and inline. The three formats convert into each other:

- `numpy`: a PIL image becomes `(H, W)` or `(H, W, C)`; an image tensor `(C, H, W)` becomes a view `(H, W, C)`.
- `tensor`: a PIL image becomes `(C, H, W)`, as in `torchvision.transforms.v2.functional.pil_to_tensor`. An image array
  `(H, W, C)` becomes a view `(C, H, W)`, and a uint8 array `(H, W)` a view `(1, H, W)`, as in `to_image`.
- `pil`: a uint8 image array or image tensor becomes a PIL image.

An image array (tensor) has three axes, of which the last (first) has length 1, 3 or 4, and dtype uint8, uint16 or
floating point. Other arrays and tensors keep their axes. `bytes` become a 1-D uint8 array or tensor. Values are copied
only from PIL images and from a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from stagepipe.core import format_setting, import_extra, is_pil_image, is_tensor

ValueFormat = Literal["numpy", "tensor", "pil"]

_IMAGE_CHANNEL_COUNTS = (1, 3, 4)  # grey, RGB, RGBA
_IMAGE_DTYPES = ("uint8", "uint16", "float16", "bfloat16", "float32", "float64")
_IMAGE_NDIM = 3


class NotConvertibleError(TypeError):
    """A value that cannot be converted to the requested format."""


def convert(value: Any, as_: ValueFormat, field_name: str) -> Any:
    """Return `value` in the format `as_`, itself where it has that format. `field_name` is for the error.

    >>> convert(b"ab", "numpy", "data")
    array([97, 98], dtype=uint8)

    Raises NotConvertibleError (a TypeError), with the value's type, shape and dtype.
    """
    try:
        return {"numpy": _as_numpy, "tensor": _as_tensor, "pil": _as_pil}[as_](value)
    except NotConvertibleError as error:
        raise NotConvertibleError(
            f"`{field_name}` is {error}, which `{format_setting('as', as_)}` cannot convert"
        ) from None


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
