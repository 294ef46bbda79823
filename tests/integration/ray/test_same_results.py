"""Each config of `configs/` and `examples/` gives on Ray what it gives on the local engine: items, and files of sinks.

None of them needs what Ray cannot do: tests/unit/config/broken/engine_ray.yaml has what is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import pytest

from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from stagepipe.config import load
from tests.support.paths import ROOT
from tests.support.pipelines import plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

CONFIGS: Final = {
    path.stem: path for folder in ("configs", "examples") for path in sorted((ROOT / folder).rglob("*.yaml"))
}
OVERRIDES: Final = {
    "feature_extraction": ("stages.extract.batch.size=1",),
    "three_models": ("vars.width=16", *(f"stages.{name}.batch.size=1" for name in ("scene", "style", "quality"))),
}
"""Overrides of a config: models that fit a test, and images that a model gets one by one.

Which images are in a model's batch depends on what has arrived, on any engine, and the last bits of a product of
matrices depend on how many rows it has.
"""


def get_overrides(name: str, engine: str) -> list[str]:
    """The overrides of a run: `runs/ENGINE` is the folder of its output."""
    overrides = [f"engine={engine}", *OVERRIDES.get(name, ())]
    if load(CONFIGS[name], overrides).sinks:
        overrides.append(f"vars.out=runs/{engine}")
    return overrides


def run(name: str, engine: str) -> tuple[list[Any], dict[str, str]]:
    """Run a config to its end; return its items, and the digests of the files that it has written."""
    items: list[Any] = []
    pipeline = Pipeline(CONFIGS[name], get_overrides(name, engine))
    if pipeline.spec.sinks:
        with open_shards(pipeline, resume=False) as shards, pipeline:
            run_to_sink(pipeline, lambda _: None, shards=shards)
    else:
        with pipeline:
            items += [plain(item) for item in pipeline]
    return items, digest_files(Path("runs") / engine)


def digest_files(folder: Path) -> dict[str, str]:
    """The files below a folder, by name, without the journal of the sinks."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_the_configs_are_there():
    assert {"quickstart", "torchvision", "digits", "feature_extraction", "thumbnails"} <= set(CONFIGS)
    assert set(CONFIGS) >= set(OVERRIDES)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_config_gives_the_same_on_both_engines(
    name: str, local_ray: Any, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(demo_folder)  # Ray has started elsewhere
    expected_items, expected_files = run(name, "local")
    assert expected_items or expected_files
    items, files = run(name, "ray")
    assert files == expected_files
    assert items == expected_items
