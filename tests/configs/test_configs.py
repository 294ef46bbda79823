"""Every config of the repository is valid, and its stages, called one after the other, make the batches it promises."""

import random
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import pytest

from stagepipe.config import PipelineSpec, StageSpec, load
from stagepipe.core import Context, current
from stagepipe.core.targets import build
from stagepipe.stages import FieldAdapter, Grouping, own_generators

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
ITEMS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's images and texts, made by the scripts that the configs name."""
    folder = tmp_path_factory.mktemp("data")
    runpy.run_path(str(ROOT / "scripts/make_images.py"))["make"](folder / "images", 22, 17)
    tokenizer = runpy.run_path(str(ROOT / "scripts/make_tokenizer.py"))
    tokenizer["train"](tokenizer["write_texts"](folder / "text/texts"), folder / "text/tokenizer.json")
    return folder


def config(name: str, data: Path) -> PipelineSpec:
    variable = "text" if name == "tokenizer.yaml" else "images"
    return load(ROOT / "configs" / name, [f"vars.{variable}={data / variable}"])


def first_items(spec: PipelineSpec) -> list[Any]:
    source = build(spec.source.uses, spec.source.arguments, spec.config_dir)
    source.begin(0, spec.seed)
    return [source[i] for i in range(ITEMS)]


def after(stage: StageSpec, spec: PipelineSpec, items: list[Any]) -> list[Any]:
    function = build(stage.target.uses, stage.target.arguments, spec.config_dir)
    if isinstance(function, Grouping):
        for item in items:
            function.add(item, 1)
        return [value for value, _ in function.finish(random.Random(0))]
    function = reseeding(function)
    if stage.field is not None or stage.as_ is not None:
        function = FieldAdapter(function, stage.field, stage.as_, stage.name, batched=stage.batch is not None)
    if stage.batch is not None:
        return list(function(items))
    return [made for number, item in enumerate(items) for made in called(function, item, stage, number)]


def reseeding(function: Any) -> Any:
    """The function, its own generators seeded by each item's number."""
    seed = own_generators(function)
    if seed is None:
        return function

    def call(**arguments: Any) -> Any:
        assert current.context is not None
        seed(current.context.item[0])
        return function(**arguments)

    return call


def called(function: Any, item: Any, stage: StageSpec, number: int) -> Iterator[Any]:
    current.context = Context(stage.name, 0, 0, (number,), 17)
    result = function(item)
    yield from result if isinstance(result, GeneratorType) else [result]
    current.context = None


def only_batch(name: str, data: Path) -> Any:
    spec = config(name, data)
    items = first_items(spec)
    for stage in spec.stages:
        items = after(stage, spec, items)
    [batch] = items
    return batch


def test_there_are_configs():
    assert {"quickstart.yaml", "torchvision.yaml", "albumentations.yaml", "tokenizer.yaml"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_valid_as_it_stands(name: str):
    assert load(ROOT / "configs" / name).name == name.removesuffix(".yaml")


def test_quickstart_is_four_processes(data: Path):
    spec = config("quickstart.yaml", data)
    assert ["files", *(s.name for s in spec.stages if not s.fuse)] == ["files", "decode", "augment", "batch"]
    assert all(s.workers == 1 for s in spec.stages)


def test_quickstart_makes_normalised_images(data: Path):
    batch = only_batch("quickstart.yaml", data)
    assert (batch["image"].shape, batch["image"].dtype) == ((ITEMS, 3, 224, 224), np.float32)
    assert -2.2 < batch["image"].min() < 0 < batch["image"].max() < 2.7
    assert len(batch["label"]) == ITEMS


def test_quickstart_gives_the_same_bits_again(data: Path):
    first, second = only_batch("quickstart.yaml", data), only_batch("quickstart.yaml", data)
    np.testing.assert_array_equal(first["image"], second["image"])


def test_torchvision_needs_no_python(data: Path):
    batch = only_batch("torchvision.yaml", data)
    assert tuple(batch["path"].shape) == (ITEMS, 3, 224, 224)
    assert str(batch["path"].dtype) == "torch.float32"


def test_albumentations_needs_no_python(data: Path):
    batch, again = only_batch("albumentations.yaml", data), only_batch("albumentations.yaml", data)
    assert (batch["data"].shape, batch["data"].dtype) == ((ITEMS, 224, 224, 3), np.float32)
    np.testing.assert_array_equal(batch["data"], again["data"])


def test_tokenizer_needs_no_python(data: Path):
    batch = only_batch("tokenizer.yaml", data)
    assert (batch["input_ids"].shape, batch["input_ids"].dtype) == ((ITEMS, 256), np.int64)
    assert batch["attention_mask"].max() == 1
