"""`as`: what a field is handed over as. An image is HWC as an array and CHW as a tensor, as torchvision has it.

The three kinds convert into each other:

- `numpy`: a PIL image gives `(H, W)` or `(H, W, C)`; an image tensor `(C, H, W)` gives a view `(H, W, C)`.
- `tensor`: a PIL image gives `(C, H, W)`, as `torchvision.transforms.v2.functional.pil_to_tensor` does; an image array
  `(H, W, C)` gives a view `(C, H, W)`, and a uint8 array `(H, W)` one of `(1, H, W)`, as `to_image` does.
- `pil`: from a uint8 image array or image tensor.

An image array (tensor) has three axes, the last (first) of which is 1, 3 or 4 long, and a dtype of images: uint8,
uint16, or floating. Other arrays and tensors keep their axes. `bytes` become a 1-D uint8 array or tensor.
Nothing is copied except out of PIL images and from a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from stagepipe.stages.kind import is_pil, is_tensor

As = Literal["numpy", "tensor", "pil"]

_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_IMAGE_DTYPES = ("uint8", "uint16", "float16", "bfloat16", "float32", "float64")
_IMAGE_AXES = 3


class NotConvertibleError(TypeError):
    """A value that has no form of the kind asked for."""


def convert(value: Any, as_: As, name: str) -> Any:
    """`value` as the kind asked for; itself if it is one already. `name` is the field's, for the error.

    >>> convert(b"ab", "numpy", "data")
    array([97, 98], dtype=uint8)

    Raises NotConvertibleError, a TypeError.
    """
    try:
        return {"numpy": _as_numpy, "tensor": _as_tensor, "pil": _as_pil}[as_](value)
    except NotConvertibleError as error:
        raise NotConvertibleError(f"`{name}` is {error}: it cannot be handed over `as: {as_}`") from None


def _is_image(value: Any, channel_axis: int) -> bool:
    dtype = str(value.dtype).removeprefix("torch.")
    return value.ndim == _IMAGE_AXES and value.shape[channel_axis] in _CHANNELS and dtype in _IMAGE_DTYPES


def _no_form(value: Any) -> NotConvertibleError:
    shape = f" of shape {tuple(value.shape)} and dtype {value.dtype}" if hasattr(value, "dtype") else ""
    return NotConvertibleError(f"a {type(value).__name__}{shape}")


def _as_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if is_pil(value):
        return np.asarray(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if is_tensor(value):
        return _numpy_of(value.permute(1, 2, 0) if _is_image(value, 0) else value)
    raise _no_form(value)


def _numpy_of(tensor: Any) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError:  # NumPy has no bfloat16
        raise _no_form(tensor) from None


def _as_tensor(value: Any) -> Any:
    if is_tensor(value):
        return value
    if is_pil(value):
        return _channels_first(_tensor(np.array(value)))
    if isinstance(value, bytes):
        return _tensor(np.frombuffer(value, np.uint8))
    if not isinstance(value, np.ndarray):
        raise _no_form(value)
    is_image = _is_image(value, -1) or (value.ndim == _IMAGE_AXES - 1 and value.dtype == np.uint8)
    return _channels_first(_tensor(value)) if is_image else _tensor(value)


def _channels_first(tensor: Any) -> Any:
    return tensor.permute(2, 0, 1) if tensor.ndim == _IMAGE_AXES else tensor[None]


def _tensor(array: np.ndarray) -> Any:
    """A tensor over the array's memory, without torch's warning that a stage's input is read-only.

    stagepipe reports a write there by itself, so the warning says nothing new.
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        try:
            return torch.from_numpy(array)
        except TypeError:  # text, objects, dates
            raise _no_form(array) from None
        except ValueError:  # negative strides, of a flipped view
            return torch.from_numpy(np.ascontiguousarray(array))


def _as_pil(value: Any) -> Any:
    if is_pil(value):
        return value
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        raise _no_form(value)
    array = _as_numpy(value)
    is_grey = array.ndim == _IMAGE_AXES - 1
    if array.dtype != np.uint8 or not (is_grey or _is_image(array, -1)):
        raise _no_form(value)
    return _pil_of(array if is_grey or array.shape[-1] > 1 else array[..., 0])


def _pil_of(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image)
