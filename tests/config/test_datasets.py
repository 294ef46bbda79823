"""A dataset as source: what it says in short becomes a source and a stage like any other, addressable by its name."""

import shutil
from pathlib import Path

import pytest

from stagepipe.config import Target, load, outline
from stagepipe.core import ConfigError
from stagepipe.sources import dataset

BROKEN = Path(__file__).parent / "broken"
SOURCE = "source: {uses: stagepipe.sources.dataset, with: {dataset: my_data.Digits, with: {root: a}, shuffle: true}}\n"
DIGITS = {"uses": "my_data.Digits", "with": {"root": "a"}}


@pytest.fixture
def data(write, folder):
    """Writes a config beside `my_data.py`, whose import would raise."""
    shutil.copy(BROKEN / "my_data.py", folder / "my_data.py")
    return write


def test_the_source_is_followed_by_the_stage_dataset(data):
    spec = load(data(f"{SOURCE}stages:\n  - {{name: decode, uses: my_ops.decode}}\n"))
    assert outline(spec) == "source -> dataset -> decode"
    assert spec.source == Target("stagepipe.sources.dataset", {"dataset": DIGITS, "shuffle": True})
    assert spec.stages[0].target == Target("stagepipe.stages.Fetch", {"dataset": DIGITS})


def test_an_entry_of_its_name_is_that_stage_wherever_it_stands(data):
    stages = "stages:\n  - {name: decode, uses: my_ops.decode}\n  - {name: dataset, workers: 4, threads: 2}\n"
    spec = load(data(f"{SOURCE}{stages}"))
    assert outline(spec) == "source -> dataset (4) -> decode"
    assert spec.stages[0].threads == 2


def test_an_override_reaches_it_whether_it_was_written_or_not(data):
    path = data(SOURCE)
    assert outline(load(path, ["stages.dataset.workers=3"])) == "source -> dataset (3)"
    assert outline(load(path, ["stages.dataset.fuse=true"])) == "source + dataset"
    assert load(path, ["source.with.shuffle=false"]).source.arguments["shuffle"] is False
    plain = load(path, ["source.uses=itertools.repeat", "source.with={object: 1}"])
    assert outline(plain) == "source"


def test_a_file_that_extends_another_sets_its_keys(data):
    data(f"{SOURCE}stages:\n  - {{name: decode, uses: my_ops.decode}}\n", "base.yaml")
    spec = load(data("extends: base.yaml\nstages:\n  - {name: dataset, workers: 2}\n", "over.yaml"))
    assert outline(spec) == "source -> dataset (2) -> decode"


def test_files_are_looked_for_beside_the_file_that_names_them(data, folder):
    (folder / "deeper").mkdir()
    data(SOURCE.replace("my_data.", "../my_data.py:"), "deeper/base.yaml")
    spec = load(data("extends: deeper/base.yaml\n", "over.yaml"))
    assert spec.source.arguments["dataset"]["uses"] == "my_data.py:Digits"


def test_samplers_and_collate_fn_are_named_in_short_or_in_full(data):
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
    assert spec.source.arguments == {
        "dataset": {"uses": "./my_data.py:Digits", "with": {"root": "a"}},
        "batch_sampler": {"uses": "my_data.Balanced", "with": {"count": 4}},
    }
    assert spec.stages[0].target.arguments["collate_fn"] == {"uses": "my_data.collate"}
    assert spec.stages[0].target.arguments["batched"] is True


@pytest.mark.parametrize("name", ["my_data.Lines", "my_data.LongLines", "./my_data.py:Lines"])
def test_a_dataset_that_is_seen_to_be_iterable_needs_no_process_of_its_own(data, name):
    text = f"source: {{uses: stagepipe.sources.dataset, with: {{dataset: {name}, with: {{root: a}}}}}}\n"
    assert outline(load(data(text))) == "source + dataset"
    assert outline(load(data(text), ["stages.dataset.fuse=false"])) == "source -> dataset"


def test_objects_from_python_stand_for_themselves():
    made = [1, 2]
    arguments = {"dataset": range(3), "sampler": made}
    spec = load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})
    assert spec.source.arguments == {"dataset": range(3), "sampler": made}
    assert outline(load({"source": {"uses": "stagepipe.sources.dataset", "with": {"dataset": map(abs, made)}}})) == (
        "source + dataset"
    )


def test_the_class_itself_names_the_source():
    spec = load({"source": {"uses": dataset, "with": {"dataset": range(3)}}}, ["stages.dataset.workers=2"])
    assert outline(spec) == "source -> dataset (2)"


def test_what_a_built_dataset_cannot_take_is_said():
    arguments = {"dataset": range(3), "with": {"root": "a"}}
    with pytest.raises(ConfigError, match="this one has its own, or is built"):
        load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})


def test_a_batch_sampler_leaves_no_room_for_batch(data):
    text = SOURCE.replace("shuffle: true", "batch_sampler: [[0]]")
    with pytest.raises(ConfigError, match="takes no `batch` where the source has a `batch_sampler`"):
        load(data(text), ["stages.dataset.batch.size=4"])
