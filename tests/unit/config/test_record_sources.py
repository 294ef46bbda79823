"""A record source becomes the dataset of a dataset source, however it is named; its mistakes keep their place."""

import pytest

import stagepipe.sources
from stagepipe import defer, from_source
from stagepipe.config import load, summarize_spec
from stagepipe.config.dataset_source import RECORD_SOURCE_NAMES
from stagepipe.core import ConfigError
from stagepipe.plan import split_source
from stagepipe.sources import JsonlSource, RecordSource
from stagepipe.spec import Target

JSONL = {"uses": "stagepipe.sources.jsonl", "with": {"path": "a.jsonl", "shuffle": True}}


def test_the_names_are_those_of_the_package():
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
    with pytest.raises(ConfigError, match=r"`stagepipe\.sources\.jsonl` takes no `batch`: its `batch_size` already"):
        load(write(text))


def test_urls_are_read_in_workers_and_local_files_as_before(write):
    text = "source: {uses: stagepipe.sources.files, with: {glob: %s, read: true}}\n"
    assert load(write(text % "'s3://b/*.jpg'"), ["source.workers=8"]).source.reading == "index"
    with pytest.raises(ConfigError, match=r"`stagepipe\.sources\.files` takes no `workers`: one process reads it"):
        load(write(text % "'b/*.jpg'"), ["source.workers=8"])


def test_a_data_file_is_not_read_as_code(write, folder):
    (folder / "a").mkdir()
    (folder / "a/b.txt").write_text("not = = Python")
    assert load(write("source: {uses: itertools.repeat, with: {object: a/b.txt}}\n")).name
    assert not load(write(f"source: {{uses: itertools.repeat, with: {{object: {folder}/a/b.txt}}}}\n")).uses_torch
