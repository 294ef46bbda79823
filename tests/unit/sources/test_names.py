"""What is built in is found by its class, and by what a saved file says, wherever in the package it is defined."""

import inspect

import pytest

from stagepipe import sinks, sources, stages
from stagepipe.config import load
from stagepipe.core import get_class_path
from stagepipe.fingerprint import get_display_name
from stagepipe.stages import table, text

CLASSES = [value for name, value in vars(sources).items() if name.endswith("Source") and inspect.isclass(value)]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_path_of_a_class_is_its_public_one(cls):
    assert get_class_path(cls) == f"stagepipe.sources.{cls.__name__}"


FOLDERS = (sinks, sources, stages, table, text)
# The names that earlier versions have written. A class that moves needs an entry in `_RECORDED_PLACES`.
RECORDED = """
sinks.hugging_face_sink.HuggingFaceSink sinks.images_sink.ImagesSink sinks.jsonl_sink.JsonlSink sinks.npy_sink.NpySink
sinks.npy_sink.NpzShardSink sinks.npz_sink.NpzSink sinks.parquet_sink.ParquetSink sinks.webdataset_sink.WebDatasetSink
sinks.zarr_sink.ZarrSink
sources.arrow_source.ArrowSource sources.concat_source.ConcatSource sources.csv_source.CsvSource
sources.dataset_source.DatasetSource sources.files_source.FilesSource sources.hdf5_source.Hdf5Source
sources.hugging_face_source.HuggingFaceSource sources.jsonl_source.JsonlSource sources.lance_source.LanceSource
sources.mix_source.MixSource sources.npy_source.NpySource sources.numbers_source.NumbersSource
sources.parquet_source.ParquetSource sources.record_source.RecordSource sources.text_source.TextSource
sources.webdataset_source.WebdatasetSource sources.zarr_source.ZarrSource sources.zip_source.ZipSource
stages.batch.Batch stages.bucket.Bucket stages.fetch.Fetch stages.fetch_shard.FetchShard stages.filter.Filter
stages.flat_map.FlatMap stages.select_fields.Drop stages.select_fields.Rename stages.select_fields.Select
stages.shuffle.Shuffle stages.unbatch.Unbatch
stages.table.grouping.FromRows stages.table.stages.Apply stages.table.stages.Convert stages.table.stages.ToRows
stages.text.pack.Pack stages.text.quality.QualityFilter stages.text.tokenize.Tokenize
""".split()  # noqa: SIM905 - fifty lines would say no more


@pytest.mark.parametrize("name", RECORDED)
def test_states_name_a_class_as_earlier_versions_did(name):
    class_name = name.rpartition(".")[2]
    cls = next(getattr(folder, class_name) for folder in FOLDERS if hasattr(folder, class_name))
    assert get_display_name(cls) == f"stagepipe.{name}"


def test_states_name_the_members_of_a_source_object_as_earlier_versions_did():
    dataset = sources.DatasetSource(sources.ConcatSource([["a"], ["b"]]), shuffle=True)
    names = [get_display_name(value) for value in (dataset._order, dataset.dataset.parts[0])]
    assert names == ["stagepipe.sources.shuffled_order.ShuffledOrder", "stagepipe.sources.source_parts.SourcePart"]


def test_dead_letters_of_a_source_given_as_a_class_remain_valid():
    spec = load({"source": {"uses": sources.FilesSource, "with": {"glob": "images/*.jpg"}}}, [])
    assert spec.source_sha256 == "791bf859b4e71697fae2274e6acb559f2b16044b66aafa2e1f23cdc0f9cadfbf"
