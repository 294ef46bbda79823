"""Every config in `configs/` is valid, and its stages, called in order, produce the expected batches."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import pytest

from stagepipe.config import load
from stagepipe.core import Context, build_target, stage_locals
from stagepipe.runtime.execution.fields import FieldAdapter
from stagepipe.runtime.execution.own_generators import find_own_generators
from stagepipe.spec import PipelineSpec, StageSpec
from stagepipe.stages import OrderPointStage
from tests.support.paths import ROOT

CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
ITEMS = 5


def config(name: str, data: Path) -> PipelineSpec:
    variable = "text" if name == "tokenizer.yaml" else "images"
    return load(ROOT / "configs" / name, [f"vars.{variable}={data / variable}"])


def first_items(spec: PipelineSpec) -> list[Any]:
    source = build_target(spec.source.target.uses, spec.source.target.arguments, spec.config_dir)
    source.begin(0, spec.seed)
    return [source[i] for i in range(ITEMS)]


def apply_stage(stage: StageSpec, spec: PipelineSpec, items: list[Any]) -> list[Any]:
    function = build_target(stage.target.uses, stage.target.arguments, spec.config_dir)
    if isinstance(function, OrderPointStage):
        for item in items:
            function.add(item, 1)
        return [value for value, _ in function.finish(random.Random(0))]
    function = seed_per_item(function)
    if stage.field is not None or stage.as_ is not None:
        function = FieldAdapter(function, stage.field, stage.as_, stage.name, batched=stage.batch is not None)
    if stage.batch is not None:
        return list(function(items))
    return [result for number, item in enumerate(items) for result in call_stage(function, item, stage, number)]


def seed_per_item(function: Any) -> Any:
    """Wrap a function that has random generators of its own: seed them with each item's number."""
    seed = find_own_generators(function)
    if seed is None:
        return function

    def call(**arguments: Any) -> Any:
        assert stage_locals.context is not None
        seed(stage_locals.context.item[0])
        return function(**arguments)

    return call


def call_stage(function: Any, item: Any, stage: StageSpec, number: int) -> Iterator[Any]:
    stage_locals.context = Context(stage.name, 0, 0, (number,), 17)
    result = function(item)
    yield from result if isinstance(result, GeneratorType) else [result]
    stage_locals.context = None


def only_batch(name: str, data: Path) -> Any:
    spec = config(name, data)
    items = first_items(spec)
    for stage in spec.stages:
        items = apply_stage(stage, spec, items)
    [batch] = items
    return batch


def test_the_documented_configs_exist():
    assert {"quickstart.yaml", "torchvision.yaml", "albumentations.yaml", "tokenizer.yaml"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_valid(name: str):
    assert load(ROOT / "configs" / name).name == name.removesuffix(".yaml")


def test_quickstart_has_four_processes(demo_data: Path):
    spec = config("quickstart.yaml", demo_data)
    assert ["files", *(s.name for s in spec.stages if not s.fuse)] == ["files", "decode", "augment", "batch"]
    assert all(s.workers == 1 for s in spec.stages)


def test_quickstart_makes_normalised_images(demo_data: Path):
    batch = only_batch("quickstart.yaml", demo_data)
    assert (batch["image"].shape, batch["image"].dtype) == ((ITEMS, 3, 224, 224), np.float32)
    assert -2.2 < batch["image"].min() < 0 < batch["image"].max() < 2.7
    assert len(batch["label"]) == ITEMS


def test_quickstart_is_bitwise_repeatable(demo_data: Path):
    first, second = only_batch("quickstart.yaml", demo_data), only_batch("quickstart.yaml", demo_data)
    np.testing.assert_array_equal(first["image"], second["image"])


def test_torchvision_needs_no_python(demo_data: Path):
    batch = only_batch("torchvision.yaml", demo_data)
    assert tuple(batch["path"].shape) == (ITEMS, 3, 224, 224)
    assert str(batch["path"].dtype) == "torch.float32"


def test_albumentations_needs_no_python(demo_data: Path):
    batch, again = only_batch("albumentations.yaml", demo_data), only_batch("albumentations.yaml", demo_data)
    assert (batch["data"].shape, batch["data"].dtype) == ((ITEMS, 224, 224, 3), np.float32)
    np.testing.assert_array_equal(batch["data"], again["data"])


def test_tokenizer_needs_no_python(demo_data: Path):
    batch = only_batch("tokenizer.yaml", demo_data)
    assert (batch["input_ids"].shape, batch["input_ids"].dtype) == ((ITEMS, 256), np.int64)
    assert batch["attention_mask"].max() == 1
