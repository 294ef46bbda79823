"""`field`, `as`: torchvision, albumentations, transformers unchanged; torchvision's own conversions are the oracle."""

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torchvision import transforms as old_transforms
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as vision

import stagepipe
from stagepipe.core import build_target
from stagepipe.runtime.execution.fields import FieldAdapter, NotConvertibleError, convert
from stagepipe.runtime.execution.seeding import find_own_generators

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_pil_image_becomes_the_tensor_of_pil_to_tensor(mode: str):
    image = Image.fromarray(RGB).convert(mode)
    assert torch.equal(convert(image, "tensor", "image"), vision.pil_to_tensor(image))


@pytest.mark.parametrize(
    "array", [RGB, RGB[..., :1], RGB[..., 0], RGB.astype("f4"), RGB[:, ::-1]], ids=lambda a: a.shape
)
def test_an_image_array_becomes_the_tensor_of_to_image(array: np.ndarray):
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
        ("tensor", "cat.jpg", "`x` is of type str, which `as=tensor` cannot convert"),
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


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    """A photograph that scikit-learn ships, 640 x 427."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    with Image.open(Path(spec.origin).parent / "datasets/images/china.jpg") as image:
        return image.convert("RGB")


@pytest.fixture
def item(photo: Image.Image) -> dict[str, Any]:
    """An item as a stage receives it: the array is read-only."""
    array = np.asarray(photo)
    array.flags.writeable = False
    return {"image": array, "label": 3}


@pytest.fixture
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast  # only here: every process that runs tests imports this module

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "bus": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def test_one_field_is_replaced_in_a_copy():
    item = {"x": 2, "y": 3}
    assert FieldAdapter(lambda x: x * 10, "x", None, "s")(item) == {"x": 20, "y": 3}
    assert item == {"x": 2, "y": 3}


def test_torchvision_on_a_field_as_tensor(item: dict[str, Any]):
    compose = build_target(
        "torchvision.transforms.v2.Compose",
        {
            "transforms": [
                {"uses": "torchvision.transforms.v2.RandomResizedCrop", "with": {"size": 64}},
                {"uses": "torchvision.transforms.v2.ToDtype", "with": {"dtype": torch.float32, "scale": True}},
            ]
        },
    )
    torch.manual_seed(1)
    result = FieldAdapter(compose, "image", "tensor", "augment")(item)
    torch.manual_seed(1)
    expected = compose(v2.functional.to_image(item["image"].copy()))
    assert torch.equal(result["image"], expected.as_subclass(torch.Tensor))
    assert result["label"] == 3


def test_torchvision_on_a_field_as_pil(item: dict[str, Any], photo: Image.Image):
    result = FieldAdapter(v2.CenterCrop(100), "image", "pil", "crop")(item)["image"]
    assert result.tobytes() == v2.CenterCrop(100)(photo).tobytes()


def test_tv_tensors_survive(item: dict[str, Any]):
    boxes = tv_tensors.BoundingBoxes([[0, 0, 10, 10]], format="XYXY", canvas_size=(427, 640))  # type: ignore[call-overload]
    result = FieldAdapter(v2.RandomHorizontalFlip(1.0), None, "tensor", "flip")({**item, "boxes": boxes})
    assert type(result["boxes"]) is tv_tensors.BoundingBoxes
    assert result["boxes"].tolist() == [[630, 0, 640, 10]]
    np.testing.assert_array_equal(result["image"].permute(1, 2, 0).numpy(), item["image"][:, ::-1])


def test_albumentations_by_keyword(item: dict[str, Any]):
    compose = albumentations.Compose([albumentations.CenterCrop(64, 48), albumentations.HorizontalFlip(p=1)])
    result = FieldAdapter(compose, {"image": "image"}, None, "augment")(item)
    np.testing.assert_array_equal(result["image"], compose(image=item["image"])["image"])
    assert result["label"] == 3


def test_albumentations_maps_arguments_to_fields_of_other_names(item: dict[str, Any]):
    compose = albumentations.Compose([albumentations.HorizontalFlip(p=1)])
    mask = np.arange(427 * 640, dtype=np.uint8).reshape(427, 640)
    result = FieldAdapter(compose, {"image": "photo", "mask": "where"}, "numpy", "flip")(
        {"photo": torch.from_numpy(item["image"].copy()).permute(2, 0, 1), "where": mask}
    )
    assert set(result) == {"photo", "where"}
    np.testing.assert_array_equal(result["photo"], item["image"][:, ::-1])
    np.testing.assert_array_equal(result["where"], mask[:, ::-1])


def test_albumentations_own_generators_are_seeded(item: dict[str, Any]):
    def draw(seed: int) -> np.ndarray:
        compose = albumentations.Compose([albumentations.RandomCrop(32, 32), albumentations.HorizontalFlip()])
        reseed = find_own_generators(compose)
        assert reseed is not None
        reseed(seed)
        return FieldAdapter(compose, {"image": "image"}, None, "augment")(item)["image"]

    np.testing.assert_array_equal(draw(2**63 + 1), draw(2**63 + 1))
    assert any((draw(1) != draw(seed)).any() for seed in range(2, 6))


def test_a_tokenizer_adds_its_fields(tokenizer: Any):
    result = FieldAdapter(tokenizer, {"text": "caption"}, None, "tokenize")({"caption": "a red bus"})
    assert result["caption"] == "a red bus"
    assert result["input_ids"] == [2, 1, 3]


def test_a_tokenizer_on_a_list_of_items(tokenizer: Any):
    call = partial(type(tokenizer).__call__, self=tokenizer, padding=True, return_tensors="np")
    result = FieldAdapter(call, {"text": "caption"}, None, "tokenize", batched=True)(
        [{"caption": "a bus"}, {"caption": "a red bus"}]
    )
    assert [row["input_ids"].tolist() for row in result] == [[2, 3, 0], [2, 1, 3]]
    assert [row["caption"] for row in result] == ["a bus", "a red bus"]


def test_a_batch_of_items_on_one_field():
    def double(xs: list[int]) -> list[int]:
        assert xs == [1, 2]
        return [2 * x for x in xs]

    result = FieldAdapter(double, "x", None, "s", batched=True)([{"x": 1, "y": 0}, {"x": 2, "y": 5}])
    assert result == [{"x": 2, "y": 0}, {"x": 4, "y": 5}]
    assert FieldAdapter(double, "x", None, "s", batched=True).is_generator is False


def test_a_batch_can_drop_items_and_return_a_tensor():
    drop = FieldAdapter(lambda xs: [stagepipe.SKIP, xs[1]], "x", None, "s", batched=True)
    assert drop([{"x": 1}, {"x": 2}]) == [stagepipe.SKIP, {"x": 2}]
    stack = FieldAdapter(torch.stack, "x", "tensor", "s", batched=True)
    assert stack([{"x": np.ones(2)}, {"x": np.zeros(2)}])[1]["x"].tolist() == [0, 0]


def test_a_batch_with_too_few_results_is_refused():
    with pytest.raises(ValueError, match="s: 1 results for a batch of 2 items"):
        FieldAdapter(lambda xs: xs[:1], "x", None, "s", batched=True)([{"x": 1}, {"x": 2}])


def test_skip_is_passed_on():
    assert FieldAdapter(lambda _: stagepipe.SKIP, "x", None, "s")({"x": 1}) is stagepipe.SKIP


def test_a_generator_stays_a_generator():
    def halves(x: int) -> Iterator[Any]:
        yield x / 2
        yield stagepipe.SKIP

    def returns_one(x: int) -> Iterator[Any]:
        return halves(x)

    for function in (halves, partial(halves), returns_one):
        result = FieldAdapter(function, "x", None, "s")({"x": 1, "y": 2})
        assert isinstance(result, GeneratorType)
        assert list(result) == [{"x": 0.5, "y": 2}, stagepipe.SKIP]
    assert FieldAdapter(halves, "x", None, "s").is_generator
    assert FieldAdapter(partial(halves), "x", None, "s").is_generator
    assert not FieldAdapter(abs, "x", None, "s").is_generator


def test_one_mapped_argument_takes_any_result():
    assert FieldAdapter(lambda a: a + 1, {"a": "x"}, None, "s")({"x": 1, "y": 2}) == {"x": 2, "y": 2}


def test_two_mapped_arguments_need_a_mapping_as_result():
    add = FieldAdapter(lambda a, b: a + b, {"a": "x", "b": "y"}, None, "s")
    with pytest.raises(
        TypeError,
        match=r"returned an object of type int, and `field` maps several arguments \(a, b\).*return a dict of fields",
    ):
        add({"x": 1, "y": 2})


@pytest.mark.parametrize(
    "field,function,expected",
    [
        ("x", lambda x: x + 1, {"x": 2, "y": {"z": 3}, "new": 3}),
        ("y.z", lambda z: z + 1, {"x": 2, "y": {"z": 3}, "new": 4}),
        (
            {"a": "x", "b": "y.z"},
            lambda a, b: {"a": a, "sum": a + b},
            {"x": 2, "y": {"z": 3}, "new": {"a": 2, "sum": 5}},
        ),
        ({"a": "x", "b": "y.z"}, lambda a, b: a + b, {"x": 2, "y": {"z": 3}, "new": 5}),
        (None, len, {"x": 2, "y": {"z": 3}, "new": 2}),
        ("x", lambda x: stagepipe.SKIP, stagepipe.SKIP),
    ],
)
def test_the_result_goes_into_another_field(field: Any, function: Any, expected: Any):
    item = {"x": 2, "y": {"z": 3}}
    assert FieldAdapter(function, field, None, "s", into="new")(item) == expected
    assert item == {"x": 2, "y": {"z": 3}}


def test_the_results_of_a_batch_and_of_a_generator_go_into_another_field():
    lengths = FieldAdapter(lambda words: [len(word) for word in words], "word", None, "s", into="length", batched=True)
    assert lengths([{"word": "a"}, {"word": "bcd"}]) == [{"word": "a", "length": 1}, {"word": "bcd", "length": 3}]

    def letters(word: str) -> Iterator[str]:
        yield from word

    split = FieldAdapter(letters, "word", None, "s", into="letter")
    assert list(split({"word": "ab"})) == [{"word": "ab", "letter": "a"}, {"word": "ab", "letter": "b"}]


def test_a_nested_field_is_replaced_in_copies():
    item = {"x": {"y": 1, "z": 2}}
    assert FieldAdapter(lambda y: y + 9, "x.y", None, "s")(item) == {"x": {"y": 10, "z": 2}}
    assert item == {"x": {"y": 1, "z": 2}}


def test_a_value_next_to_an_image_is_passed_unconverted(item: dict[str, Any]):
    def look(image: torch.Tensor, label: int) -> Mapping[str, Any]:
        return {"image": tuple(image.shape), "label": label}

    result = FieldAdapter(look, {"image": "image", "label": "label"}, "tensor", "s")(item)
    assert result == {"image": (3, 427, 640), "label": 3}


def test_a_whole_item_is_converted(item: dict[str, Any], photo: Image.Image):
    assert FieldAdapter(lambda image: image.size, None, "pil", "s")(item["image"]) == photo.size
    assert FieldAdapter(lambda i: i["image"].shape, None, "tensor", "s")(item) == (3, 427, 640)


@pytest.mark.parametrize(
    "field,as_,given,error,words",
    [
        ("img", None, {"image": 1, "label": 2}, KeyError, "no field `img`; it has `image`, `label`"),
        ("image", None, (1, 2), TypeError, "the field `image` needs a dict item, but this one is of type tuple"),
        ("image", "tensor", {"image": "cat.jpg"}, TypeError, "`image` is of type str"),
        (None, "tensor", {"a": "cat.jpg", "b": 1}, TypeError, "`a` is of type str.*`b` is of type int"),
        ({"x": "a"}, "pil", {"a": 1}, TypeError, "`x` is of type int"),
    ],
)
def test_a_field_that_cannot_be_converted_is_named(
    field: Any, as_: Any, given: Any, error: type[Exception], words: str
):
    with pytest.raises(error, match=words):
        FieldAdapter(lambda x: x, field, as_, "s")(given)


@pytest.mark.parametrize(
    "transform,name",
    [
        (v2.RandomCrop(10), "RandomCrop"),
        (v2.RandomHorizontalFlip(0.5), "RandomHorizontalFlip"),
        (v2.Compose([v2.Compose([v2.Resize(10)]), v2.ToImage()]), "Resize"),
        (v2.RandomApply([v2.ColorJitter()], p=0.1), "ColorJitter"),
        (old_transforms.RandomHorizontalFlip(), "RandomHorizontalFlip"),
    ],
)
def test_a_torchvision_transform_that_leaves_arrays_untouched_is_reported(
    transform: Any, name: str, item: dict[str, Any]
):
    message = f"^{name} leaves the NumPy array `image` untouched: torchvision's transforms work on .*`as=tensor`"
    for field in ("image", None):
        with pytest.raises(TypeError, match=message):
            FieldAdapter(transform, field, None, "s")(item)
    with pytest.raises(TypeError, match=message):
        FieldAdapter(transform, "image", None, "s", batched=True)([item])


@pytest.mark.parametrize(
    "transform",
    [v2.ToImage(), v2.Compose([v2.ToImage(), v2.Resize(10)]), old_transforms.ToTensor(), v2.Lambda(np.flipud)],
)
def test_a_torchvision_transform_that_takes_arrays_passes(transform: Any, item: dict[str, Any]):
    writable = {"image": item["image"].copy()}
    assert FieldAdapter(transform, "image", None, "s")(writable)["image"] is not writable["image"]
