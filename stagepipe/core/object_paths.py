"""The import paths of classes and functions: the one to write in a config, and the one in saved files. Imports nothing.

A built-in class is known by its public path, `stagepipe.sources.JsonlSource`, wherever in the package it is defined.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Final

_PACKAGES: Final = ("stagepipe.sources.", "stagepipe.stages.", "stagepipe.sinks.")
_RECORDED_PLACES: Final = {
    name: place
    for place, names in {
        "sinks.npy_sink": ("NpySink", "NpzShardSink"),
        "sinks.npz_sink": ("NpzSink",),
        "sinks.zarr_sink": ("ZarrSink",),
        "sinks.jsonl_sink": ("JsonlSink",),
        "sinks.webdataset_sink": ("WebDatasetSink",),
        "sinks.hugging_face_sink": ("HuggingFaceSink",),
        "sources.arrow_source": ("ArrowSource",),
        "sources.batched_order": ("BatchedOrder",),
        "sources.block_shuffled_order": ("BlockShuffledOrder",),
        "sources.concat_source": ("ConcatOrder", "ConcatSource"),
        "sources.csv_source": ("CsvSource",),
        "sources.hdf5_source": ("Hdf5Source",),
        "sources.joined_stream": ("IndexedPart", "JoinedStream", "StreamedPart"),
        "sources.jsonl_source": ("JsonlSource",),
        "sources.lance_source": ("LanceSource",),
        "sources.mix_order": ("MixOrder",),
        "sources.mix_schedule": ("Phase",),
        "sources.mix_source": ("MixSource",),
        "sources.npy_source": ("NpySource",),
        "sources.numbers_source": ("NumbersSource",),
        "sources.parquet_source": ("ParquetSource",),
        "sources.sampler_order": ("SamplerOrder",),
        "sources.shuffled_order": ("ShuffledOrder",),
        "sources.source_parts": ("PartOrder", "SourcePart"),
        "sources.stream_turns": ("SequentialTurns", "WeightedTurns"),
        "sources.text_source": ("TextSource",),
        "sources.zarr_source": ("ZarrSource",),
        "sources.zip_source": ("ZipSource",),
        "stages.bucket": ("Bucket",),
        "stages.fetch_shard": ("FetchShard",),
        "stages.filter": ("Filter",),
        "stages.flat_map": ("FlatMap",),
        "stages.model.module": ("Module",),
        "stages.model.pipeline": ("HuggingFacePipeline",),
        "stages.select_fields": ("Drop", "Rename", "Select"),
        "stages.shuffle": ("Shuffle",),
        "stages.table.grouping": ("FromRows",),
        "stages.table.stages": ("Apply", "Convert", "ToRows"),
        "stages.text.pack": ("Pack",),
        "stages.text.quality": ("QualityFilter",),
        "stages.text.tokenize": ("Tokenize",),
        "stages.unbatch": ("Unbatch",),
    }.items()
    for name in names
}
"""Where saved files have the built-in classes that a config can hold, and what these hold, if not where they are."""


def find_import_path(value: object, module: str, names: Sequence[str]) -> str | None:
    """The shortest import path of what `module` defines: that of the outermost package that has it. None if none has.

    >>> import json
    >>> find_import_path(json.JSONDecoder, "json.decoder", ["JSONDecoder"])
    'json.JSONDecoder'
    """
    packages = itertools.accumulate(module.split("."), "{}.{}".format)
    paths = ((package, name) for package in packages for name in names)
    return next((f"{package}.{name}" for package, name in paths if has_object(package, name, value)), None)


def get_class_path(cls: type) -> str:
    """The shortest import path of a class; of one that cannot be imported, its module and name.

    >>> from fractions import Fraction
    >>> get_class_path(Fraction)
    'fractions.Fraction'
    """
    path = find_import_path(cls, cls.__module__, [cls.__qualname__])
    return f"{cls.__module__}.{cls.__qualname__}" if path is None else path


def has_object(module: str, name: str, value: object) -> bool:
    """Whether a loaded module has the value under this name. Loads nothing lazily."""
    first, *others = name.split(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)
    return functools.reduce(lambda owner, attribute: getattr(owner, attribute, None), others, found) is value


def get_recorded_module(module: str, name: str) -> str:
    """The name of the module of a class or function in states, journals and dead letters.

    Saved files name what is built in by the module in which it was first defined. They must remain readable.

    >>> get_recorded_module("stagepipe.sources.line_sources", "JsonlSource"), get_recorded_module("json", "dumps")
    ('stagepipe.sources.jsonl_source', 'json')
    """
    place = _RECORDED_PLACES.get(name.partition(".")[0]) if module.startswith(_PACKAGES) else None
    return module if place is None else f"stagepipe.{place}"
