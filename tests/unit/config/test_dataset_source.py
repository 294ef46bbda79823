"""A dataset source has one form in the spec; the plan splits it into a source of indices and a stage that reads."""

import shutil
from pathlib import Path

import pytest

from stagepipe.config import load, summarize_spec
from stagepipe.core import ConfigError
from stagepipe.plan import split_source
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


def test_the_spec_holds_what_the_user_wrote(data):
    spec = load(data(f"{SOURCE}stages:\n  - {{name: decode, uses: my_ops.decode}}\n"))
    assert summarize_spec(spec) == "source -> decode"
    assert spec.source.target == Target("stagepipe.sources.dataset", {"dataset": DIGITS, "shuffle": True})


def test_the_plan_splits_a_source_that_is_read_by_index(data):
    spec = split_source(load(data(SOURCE), ["source.workers=3", "source.retries=2"]))
    (reader,) = spec.stages
    assert spec.source.target == Target("stagepipe.sources.dataset", {"dataset": DIGITS, "shuffle": True})
    assert reader.target == Target("stagepipe.stages.Fetch", {"dataset": DIGITS})
    assert (spec.source.workers, spec.source.retries, reader.workers, reader.retries) == (1, None, 3, 2)
    assert [(stage.name, stage.row, stage.config_path) for stage in (spec.source, reader)] == [
        ("source.indices", "source", "source"),
        ("source", "source", "source"),
    ]
    assert split_source(spec) == spec


def test_an_override_reaches_the_keys_of_the_source_in_one_pass(data):
    path = data(SOURCE)
    assert summarize_spec(load(path, ["source.workers=3"])) == "source (3)"
    assert load(path, ["source.with.shuffle=false"]).source.target.arguments["shuffle"] is False
    plain = load(path, ["source.uses=itertools.repeat", "source.with={object: 1}"])
    assert split_source(plain) == plain


@pytest.mark.parametrize("stages", ["", "stages:\n  - {name: decode, uses: my_ops.decode}\n"])
def test_an_override_of_the_stage_dataset_names_the_key_of_the_source(data, stages):
    with pytest.raises(ConfigError, match=r"did you mean `source\.workers=3`\?"):
        load(data(f"{SOURCE}{stages}"), ["stages.dataset.workers=3"])


def test_an_extending_file_sets_keys_of_the_source(data):
    data(SOURCE, "base.yaml")
    spec = load(data("extends: base.yaml\nsource: {workers: 2}\n", "over.yaml"))
    assert summarize_spec(spec) == "source (2)"


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
        "collate_fn": {"uses": "my_data.collate"},
    }
    split = split_source(spec)
    assert set(split.source.target.arguments) == {"dataset", "batch_sampler"}
    assert split.stages[0].target.arguments["collate_fn"] == {"uses": "my_data.collate"}
    assert split.stages[0].target.arguments["batched"] is True


@pytest.mark.parametrize("name", ["my_data.Lines", "my_data.LongLines", "./my_data.py:Lines"])
def test_a_known_iterable_dataset_runs_in_the_source_process(data, name):
    text = f"source: {{uses: stagepipe.sources.dataset, with: {{dataset: {name}, with: {{root: a}}}}}}\n"
    spec = split_source(load(data(text)))
    assert (spec.source.name, spec.source.part_of, spec.stages) == ("source", "", ())
    (collate,) = split_source(load(data(text), ["source.with.batch_size=2"])).stages
    assert (collate.row, collate.fuse, collate.target.arguments["batched"]) == ("source", True, True)


def test_objects_from_python_are_used_as_they_are():
    samples = [1, 2]
    arguments = {"dataset": range(3), "sampler": samples}
    spec = load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})
    assert spec.source.target.arguments == {"dataset": range(3), "sampler": samples}
    spec = load({"source": {"uses": "stagepipe.sources.dataset", "with": {"dataset": map(abs, samples)}}})
    assert spec.source.reading == "stream"


def test_the_source_may_be_given_as_its_class():
    spec = load({"source": {"uses": dataset, "with": {"dataset": range(3)}}}, ["source.workers=2"])
    assert summarize_spec(spec) == "source (2)"


def test_with_beside_a_dataset_object_is_an_error():
    arguments = {"dataset": range(3), "with": {"root": "a"}}
    with pytest.raises(ConfigError, match="this one has its own `with`, or is an object"):
        load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})


def test_batch_sampler_and_batch_exclude_each_other(data):
    text = SOURCE.replace("shuffle: true", "batch_sampler: [[0]]")
    with pytest.raises(ConfigError, match="takes no `batch`: its `batch_sampler` already forms the batches"):
        load(data(text), ["source.batch.size=4"])
