"""A dataset source expands into an ordinary source and an ordinary stage that overrides can name."""

import shutil
from pathlib import Path

import pytest

from stagepipe.config import load, summarize_spec
from stagepipe.core import ConfigError
from stagepipe.sources import dataset
from stagepipe.spec import Target

BROKEN = Path(__file__).parent / "broken"
SOURCE = "source: {uses: stagepipe.sources.dataset, with: {dataset: my_data.Digits, with: {root: a}, shuffle: true}}\n"
DIGITS = {"uses": "my_data.Digits", "with": {"root": "a"}}


@pytest.fixture
def data(write, folder):
    """Write a config next to `my_data.py`, which raises if imported."""
    shutil.copy(BROKEN / "my_data.py", folder / "my_data.py")
    return write


def test_the_stage_dataset_follows_the_source(data):
    spec = load(data(f"{SOURCE}stages:\n  - {{name: decode, uses: my_ops.decode}}\n"))
    assert summarize_spec(spec) == "source -> dataset -> decode"
    assert spec.source.target == Target("stagepipe.sources.dataset", {"dataset": DIGITS, "shuffle": True})
    assert spec.stages[0].target == Target("stagepipe.stages.Fetch", {"dataset": DIGITS})


def test_an_entry_named_dataset_is_that_stage_at_any_position(data):
    stages = "stages:\n  - {name: decode, uses: my_ops.decode}\n  - {name: dataset, workers: 4, threads: 2}\n"
    spec = load(data(f"{SOURCE}{stages}"))
    assert summarize_spec(spec) == "source -> dataset (4) -> decode"
    assert spec.stages[0].threads == 2


def test_an_override_reaches_an_explicit_or_implied_dataset_stage(data):
    path = data(SOURCE)
    assert summarize_spec(load(path, ["stages.dataset.workers=3"])) == "source -> dataset (3)"
    assert summarize_spec(load(path, ["stages.dataset.fuse=true"])) == "source + dataset"
    assert load(path, ["source.with.shuffle=false"]).source.target.arguments["shuffle"] is False
    plain = load(path, ["source.uses=itertools.repeat", "source.with={object: 1}"])
    assert summarize_spec(plain) == "source"


def test_an_extending_file_sets_keys_of_the_dataset_stage(data):
    data(f"{SOURCE}stages:\n  - {{name: decode, uses: my_ops.decode}}\n", "base.yaml")
    spec = load(data("extends: base.yaml\nstages:\n  - {name: dataset, workers: 2}\n", "over.yaml"))
    assert summarize_spec(spec) == "source -> dataset (2) -> decode"


def test_relative_files_belong_to_the_folder_of_the_naming_file(data, folder):
    (folder / "deeper").mkdir()
    data(SOURCE.replace("my_data.", "../my_data.py:"), "deeper/base.yaml")
    spec = load(data("extends: deeper/base.yaml\n", "over.yaml"))
    assert spec.source.target.arguments["dataset"]["uses"] == "my_data.py:Digits"


def test_samplers_and_collate_fn_are_paths_or_mappings(data):
    text = """
source:
  uses: stagepipe.sources.dataset
  with:
    dataset: ./my_data.py:Digits
    with: {root: "${vars.root}"}
    batch_sampler: {uses: my_data.Balanced, with: {count: 4}}
    collate_fn: my_data.collate
vars: {root: a}
"""
    spec = load(data(text))
    assert spec.source.target.arguments == {
        "dataset": {"uses": "./my_data.py:Digits", "with": {"root": "a"}},
        "batch_sampler": {"uses": "my_data.Balanced", "with": {"count": 4}},
    }
    assert spec.stages[0].target.arguments["collate_fn"] == {"uses": "my_data.collate"}
    assert spec.stages[0].target.arguments["batched"] is True


@pytest.mark.parametrize("name", ["my_data.Lines", "my_data.LongLines", "./my_data.py:Lines"])
def test_a_known_iterable_dataset_runs_in_the_source_process(data, name):
    text = f"source: {{uses: stagepipe.sources.dataset, with: {{dataset: {name}, with: {{root: a}}}}}}\n"
    assert summarize_spec(load(data(text))) == "source + dataset"
    assert summarize_spec(load(data(text), ["stages.dataset.fuse=false"])) == "source -> dataset"


def test_objects_from_python_are_used_as_they_are():
    samples = [1, 2]
    arguments = {"dataset": range(3), "sampler": samples}
    spec = load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})
    assert spec.source.target.arguments == {"dataset": range(3), "sampler": samples}
    assert summarize_spec(
        load({"source": {"uses": "stagepipe.sources.dataset", "with": {"dataset": map(abs, samples)}}})
    ) == ("source + dataset")


def test_the_source_may_be_given_as_its_class():
    spec = load({"source": {"uses": dataset, "with": {"dataset": range(3)}}}, ["stages.dataset.workers=2"])
    assert summarize_spec(spec) == "source -> dataset (2)"


def test_with_beside_a_dataset_object_is_an_error():
    arguments = {"dataset": range(3), "with": {"root": "a"}}
    with pytest.raises(ConfigError, match="this one has its own `with`, or is an object"):
        load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})


def test_batch_sampler_and_batch_exclude_each_other(data):
    text = SOURCE.replace("shuffle: true", "batch_sampler: [[0]]")
    with pytest.raises(ConfigError, match="takes no `batch`: the source's `batch_sampler` already forms the batches"):
        load(data(text), ["stages.dataset.batch.size=4"])
