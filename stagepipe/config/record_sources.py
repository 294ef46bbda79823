"""Rewrites a record source (`stagepipe.sources.jsonl`) as `stagepipe.sources.dataset` over it. Pure.

    source: {uses: stagepipe.sources.jsonl, with: {path: "data/*.jsonl", shuffle: true, batch_size: 8}}

becomes

    source:
      uses: stagepipe.sources.dataset
      with:
        dataset: {uses: stagepipe.sources.jsonl, with: {path: "data/*.jsonl", shuffle: true}}
        batch_size: 8

so the records may be read in workers. Every node keeps its location.
Runs in the process that loads the config.
"""

from __future__ import annotations

import inspect
from typing import Final

from stagepipe.config.yaml import MapEntry, MapNode, Node, ScalarNode, to_plain

_CLASSES_BY_ALIAS: Final = {
    "arrow": "ArrowSource",
    "concat": "ConcatSource",
    "csv": "CsvSource",
    "hdf5": "Hdf5Source",
    "huggingface": "HuggingFaceSource",
    "jsonl": "JsonlSource",
    "lance": "LanceSource",
    "mix": "MixSource",
    "npy": "NpySource",
    "parquet": "ParquetSource",
    "text": "TextSource",
    "webdataset": "WebdatasetSource",
    "zarr": "ZarrSource",
    "zip": "ZipSource",
}
RECORD_SOURCE_NAMES: Final = frozenset(_CLASSES_BY_ALIAS) | frozenset(_CLASSES_BY_ALIAS.values())
"""The record sources of `stagepipe.sources`: the aliases and the classes."""
LOADER_ARGUMENTS: Final = ("sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "worker_init_fn")
"""Arguments of a record source that `stagepipe.sources.dataset` takes."""
_PACKAGE: Final = "stagepipe.sources."
_FILES_SOURCES: Final = frozenset({"files", "FilesSource"})


def is_record_source(source: Node | None) -> bool:
    """Return whether a config's `source` is a record source, given as a path, a class or an object."""
    uses = source.get("uses") if isinstance(source, MapNode) else None
    value = uses.value if isinstance(uses, ScalarNode) else None
    if inspect.isclass(value) and value.__module__.startswith(_PACKAGE):
        value = f"{_PACKAGE}{value.__qualname__}"
    if isinstance(value, str):
        path = value.replace(":", ".")
        name = path.removeprefix(_PACKAGE) if path.startswith(_PACKAGE) else ""
        return name in RECORD_SOURCE_NAMES or (name in _FILES_SOURCES and _reads_urls(source))
    return getattr(value, "is_record_source", False) is True


def _reads_urls(source: Node | None) -> bool:
    """Return whether a source of files reads remote ones, which would be slow in its one process."""
    arguments = source.get("with") if isinstance(source, MapNode) else None
    plain = to_plain(arguments) if isinstance(arguments, MapNode) else {}
    return plain.get("read") is True and "://" in str(plain.get("glob"))


def expand_record_source(root: MapNode) -> MapNode:
    """Return the config with its record source, if it has one, as the dataset of a dataset source."""
    source = root.get("source")
    if not isinstance(source, MapNode) or not is_record_source(source):
        return root
    arguments = source.get("with")
    if arguments is not None and not isinstance(arguments, MapNode):
        return root  # the check of `with` reports it
    entries = {} if arguments is None else arguments.entries
    uses = source.entries["uses"]
    own = {name: entry for name, entry in entries.items() if name not in LOADER_ARGUMENTS}
    dataset: Node = uses.node
    if own or not isinstance(uses.node, ScalarNode) or isinstance(uses.node.value, str | type):
        own_map = MapNode(own, source.location if arguments is None else arguments.location)
        dataset = MapNode({"uses": uses, "with": MapEntry(source.location, own_map)}, source.location)
    others = {name: entry for name, entry in entries.items() if name in LOADER_ARGUMENTS}
    new_arguments = MapNode({"dataset": MapEntry(uses.key_location, dataset), **others}, source.location)
    new_uses = ScalarNode("stagepipe.sources.dataset", uses.node.location)
    return root.with_entry("source", source.with_entry("uses", new_uses).with_entry("with", new_arguments))
