"""`as`: torchvision's own conversions are the oracle."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as vision

from stagepipe.runtime.execution.fields.conversion import NotConvertibleError, convert

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_pil_image_becomes_what_pil_to_tensor_makes(mode: str):
    image = Image.fromarray(RGB).convert(mode)
    assert torch.equal(convert(image, "tensor", "image"), vision.pil_to_tensor(image))


@pytest.mark.parametrize(
    "array", [RGB, RGB[..., :1], RGB[..., 0], RGB.astype("f4"), RGB[:, ::-1]], ids=lambda a: a.shape
)
def test_an_image_array_becomes_what_to_image_makes(array: np.ndarray):
    tensor = convert(array, "tensor", "image")
    assert type(tensor) is torch.Tensor
    assert torch.equal(tensor, vision.to_image(array.copy()).as_subclass(torch.Tensor))


@pytest.mark.parametrize("array", [np.zeros((4, 3)), np.zeros((3, 8, 8), "f4"), np.zeros((5, 5, 3), "i8"), np.zeros(3)])
def test_other_arrays_keep_their_axes(array: np.ndarray):
    assert tuple(convert(array, "tensor", "x").shape) == array.shape


def test_an_image_tensor_becomes_an_image_array_and_back_without_a_copy():
    tensor = convert(RGB, "tensor", "image")
    array = convert(tensor, "numpy", "image")
    np.testing.assert_array_equal(array, RGB)
    assert np.shares_memory(array, RGB)


@pytest.mark.parametrize(
    "image", [RGB, RGB[..., 0], RGB[..., :1], convert(RGB, "tensor", "image")], ids=lambda a: a.shape
)
def test_images_become_pil_images(image: Any):
    pil = convert(image, "pil", "image")
    assert isinstance(pil, Image.Image)
    assert pil.size == (7, 5)
    np.testing.assert_array_equal(np.asarray(pil).reshape(-1), np.asarray(convert(image, "numpy", "x")).reshape(-1))


@pytest.mark.parametrize("as_,value", [("numpy", RGB), ("tensor", torch.zeros(2)), ("pil", Image.new("L", (2, 2)))])
def test_a_value_in_the_requested_format_is_returned_as_it_is(as_: Any, value: Any):
    assert convert(value, as_, "x") is value


def test_bytes_become_uint8():
    assert convert(b"\x01\x02", "tensor", "data").tolist() == [1, 2]
    assert convert(b"\x01\x02", "numpy", "data").tolist() == [1, 2]


def test_a_read_only_array_is_converted_without_a_warning_or_a_copy():
    array = RGB.copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = convert(array, "tensor", "image")
    assert tensor.data_ptr() == array.ctypes.data


@pytest.mark.parametrize(
    "as_,value,words",
    [
        ("tensor", "cat.jpg", "`x` is of type str, which `as: tensor` cannot convert"),
        ("tensor", np.array(["a"]), "ndarray of shape .1,. and dtype <U1"),
        ("numpy", 3, "of type int"),
        ("numpy", torch.zeros(2, dtype=torch.bfloat16), "bfloat16"),
        ("pil", np.zeros((3, 8, 8), np.uint8), r"shape \(3, 8, 8\)"),
        ("pil", torch.zeros(3, 8, 8), "float32"),
        ("pil", b"abc", "of type bytes"),
    ],
)
def test_a_value_that_cannot_be_converted_is_named(as_: Any, value: Any, words: str):
    with pytest.raises(NotConvertibleError, match=words):
        convert(value, as_, "x")
