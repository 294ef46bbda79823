"""A dataset source has one form in the spec; the plan splits it into a source of indices and a stage that reads.

A record source becomes the dataset of a dataset source, however it is named; its mistakes keep their place.
"""

import shutil
from pathlib import Path

import pytest

import stagepipe.sources
from stagepipe import defer, from_source
from stagepipe.config import load, summarize_spec
from stagepipe.config.dataset_source import RECORD_SOURCE_NAMES
from stagepipe.core import ConfigError
from stagepipe.plan import split_source
from stagepipe.sources import JsonlSource, RecordSource, dataset
from stagepipe.spec import Target

BROKEN = Path(__file__).parent / "broken"
SOURCE = "source: {uses: stagepipe.sources.dataset, with: {dataset: my_data.Digits, with: {root: a}, shuffle: true}}\n"
DIGITS = {"uses": "my_data.Digits", "with": {"root": "a"}}


@pytest.fixture
def data(write, folder):
    """Write a config next to `my_data.py`, which raises if imported."""
    shutil.copy(BROKEN / "my_data.py", folder / "my_data.py")
    return write


def test_the_spec_holds_the_user_s_values(data):
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


def test_with_next_to_a_dataset_object_is_an_error():
    arguments = {"dataset": range(3), "with": {"root": "a"}}
    with pytest.raises(ConfigError, match="this one has its own `with`, or is an object"):
        load({"source": {"uses": "stagepipe.sources.dataset", "with": arguments}})


def test_batch_sampler_and_batch_exclude_each_other(data):
    text = SOURCE.replace("shuffle: true", "batch_sampler: [[0]]")
    with pytest.raises(ConfigError, match="cannot have `batch`: its `batch_sampler` already forms the batches"):
        load(data(text), ["source.batch.size=4"])


JSONL = {"uses": "stagepipe.sources.jsonl", "with": {"path": "a.jsonl", "shuffle": True}}


def test_the_names_match_the_package():
    names = {
        name
        for name, value in vars(stagepipe.sources).items()
        if isinstance(value, type) and issubclass(value, RecordSource) and value.is_record_source
    }
    assert names - {"RecordSource"} == RECORD_SOURCE_NAMES


def test_the_records_are_read_in_the_workers_of_the_source(write):
    text = "source: {uses: stagepipe.sources.jsonl, with: {path: a.jsonl, shuffle: true, batch_size: 4}}\n"
    spec = load(write(text), ["source.workers=3"])
    assert summarize_spec(spec) == "source (3)"
    assert spec.source.target == Target("stagepipe.sources.dataset", {"dataset": JSONL, "batch_size": 4})
    assert split_source(spec).stages[0].target == Target("stagepipe.stages.Fetch", {"dataset": JSONL, "batched": True})


def test_a_class_and_an_object_are_record_sources_too(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    made = JsonlSource(str(tmp_path / "a.jsonl"), shuffle=True)
    for source in (defer(JsonlSource, path=str(tmp_path / "a.jsonl"), shuffle=True), made):
        pipeline = from_source(source)
        assert sorted(pipeline.take(2)) == [1, 2]
        assert "stagepipe.sources.dataset" in str(load(pipeline).source.target)


@pytest.mark.parametrize(
    "with_, message",
    [
        ("{path: a.jsonl, shufle: true}", "`stagepipe.sources.jsonl` has no argument `shufle`"),
        ("{shuffle: true}", "`stagepipe.sources.jsonl` needs the argument `path`"),
        ("{path: a.jsonl, batch_size: 0}", "`batch_size`: expected a whole number of at least 1"),
    ],
)
def test_mistakes_keep_their_place(write, with_, message):
    with pytest.raises(ConfigError) as caught:
        load(write(f"source:\n  uses: stagepipe.sources.jsonl\n  with: {with_}\n"))
    (problem,) = caught.value.problems
    assert (message in problem.message, problem.line in {2, 3}) == (True, True), problem.message


def test_messages_name_the_source_that_the_user_wrote(write):
    text = "source: {uses: stagepipe.sources.jsonl, batch: {size: 2}, with: {path: a.jsonl, batch_size: 4}}\n"
    with pytest.raises(ConfigError, match=r"`stagepipe\.sources\.jsonl` cannot have `batch`: its `batch_size` already"):
        load(write(text))


def test_urls_are_read_in_workers_and_local_files_as_before(write):
    text = "source: {uses: stagepipe.sources.files, with: {glob: %s, read: true}}\n"
    assert load(write(text % "'s3://b/*.jpg'"), ["source.workers=8"]).source.reading == "index"
    with pytest.raises(ConfigError, match=r"`stagepipe\.sources\.files` cannot have `workers`: one process reads it"):
        load(write(text % "'b/*.jpg'"), ["source.workers=8"])


def test_a_data_file_is_not_read_as_code(write, folder):
    (folder / "a").mkdir()
    (folder / "a/b.txt").write_text("not = = Python")
    assert load(write("source: {uses: itertools.repeat, with: {object: a/b.txt}}\n")).name
    assert not load(write(f"source: {{uses: itertools.repeat, with: {{object: {folder}/a/b.txt}}}}\n")).uses_torch
