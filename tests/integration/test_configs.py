"""Every config in `configs/` is valid and produces the expected batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagepipe import Pipeline
from stagepipe.config import load
from tests.support.paths import ROOT

CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
ITEMS = 5


def point_to_data(name: str, data: Path) -> list[str]:
    """Return the override that lets a config find the demo's data."""
    variable = "text" if name == "tokenizer.yaml" else "images"
    return [f"vars.{variable}={data / variable}"]


def only_batch(name: str, data: Path) -> Any:
    """Return the batch of the first items."""
    with Pipeline(ROOT / "configs" / name, point_to_data(name, data), inline=True, limit=ITEMS) as pipeline:
        [batch] = pipeline
    return batch


def test_the_documented_configs_exist():
    assert {"quickstart.yaml", "torchvision.yaml", "albumentations.yaml", "tokenizer.yaml"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_valid(name: str):
    assert load(ROOT / "configs" / name).name == name.removesuffix(".yaml")


def test_quickstart_has_four_processes():
    spec = load(ROOT / "configs" / "quickstart.yaml")
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
