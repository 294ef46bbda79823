"""`HuggingFaceSource`: a dataset of Hugging Face, map-style or streamed."""

from __future__ import annotations

import functools
import glob as globbing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stagepipe.core import SourceFiles, describe_files, import_extra
from stagepipe.sources.dataset_source import FILES_ATTRIBUTE
from stagepipe.sources.record_source import RecordSource, ShuffleMode, check_columns, describe_rows, name_place
from stagepipe.sources.stored_files import (
    Paths,
    describe_stored_files,
    find_stored_files,
    is_remote,
    list_paths,
    sample_contents,
)

_BUILDERS: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".txt": "text"}
"""The builder of `datasets` for files with this suffix."""
_FILE_SUFFIXES: Final = (*_BUILDERS, ".arrow", ".tar", ".zip", ".gz", ".bz2", ".xz", ".zst", ".tsv", ".py")
"""Suffixes that mark a file. Other dots may belong to a dataset's name on the Hub: `teknium/OpenHermes-2.5`."""
_SAVED_MARKS: Final = ("state.json", "dataset_dict.json")
"""`save_to_disk` writes one of these files, for a Dataset or a DatasetDict."""


class HuggingFaceSource(RecordSource):
    """Yield each row of a Hugging Face dataset as a dict.

    In YAML it is `uses: stagepipe.sources.huggingface`. The dataset is memory-mapped, so all workers share its memory.

    Args:
        path: a folder written by `save_to_disk`, such as `data/corpus`; one or several paths or patterns of Arrow,
            Parquet, JSON, CSV or text files; or an argument of `datasets.load_dataset`: a folder of files, or the name
            of a dataset on the Hub. Files other than Arrow are converted once, into the cache folder of `datasets`.
        name: the configuration, if the dataset has several.
        split: the split, if the dataset has several, such as `train`, or a part of one: `train[:10%]`.
        columns: the columns to read. None: all.
        format: `numpy` or `torch` turns columns of numbers into arrays. None: as saved, or Python objects.
        streaming: read the rows in order in the source's process, without converting or downloading the whole dataset.
            Rows then have no index: to shuffle, add a stage `stagepipe.stages.Shuffle`. Without `format`, a resume
            continues from the dataset's own state and does not read earlier rows again.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        options: more arguments of `datasets.load_dataset`, such as `{revision: main}`.

    Requires datasets: `pip install 'datasets>=3'`.

    >>> HuggingFaceSource("data/corpus", columns=["text"])[0]  # doctest: +SKIP
    {'text': 'one'}

    Raises ValueError for an unknown split or column (the error lists the known ones), for several splits without
    `split`, for files without rows or with an invalid one, for a local path that does not exist, and for `shuffle` with
    `streaming`.
    """

    def __new__(cls, path: Paths = "", *, streaming: bool = False, **arguments: Any) -> Any:
        """Return an iterable dataset of `datasets` with `streaming`."""
        if not streaming:
            return super().__new__(cls)
        if arguments.pop("shuffle", False):
            raise ValueError(
                "huggingface: a stream has no indices for `shuffle` to order; remove `shuffle`, and add a stage "
                "{name: shuffle, uses: stagepipe.stages.Shuffle, with: {size: 1000}}"
            )
        stream = _load(path, streaming=True, **arguments)
        setattr(stream, FILES_ATTRIBUTE, _describe_files(path))
        return stream

    def __init__(
        self,
        path: Paths,
        *,
        name: str | None = None,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        format: str | None = None,  # noqa: A002 - the word of `datasets`
        streaming: bool = False,  # noqa: ARG002 - see `__new__`
        shuffle: ShuffleMode = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        import_extra("datasets", "huggingface", "the source `huggingface`")
        self._arguments: dict[str, Any] = {
            "path": path,
            "name": name,
            "split": split,
            "columns": columns,
            "format": format,
            "options": options,
        }

    def __len__(self) -> int:
        return len(self._dataset)

    def describe_files(self) -> SourceFiles:
        """Return the identity of the dataset's Arrow files."""
        paths = [Path(file["filename"]) for file in self._dataset.cache_files]
        statuses = [path.stat() for path in paths]
        times_ns = [status.st_mtime_ns for status in statuses]
        return describe_files(
            [path.name for path in paths],
            [status.st_size for status in statuses],
            times_ns,
            sample_contents(list(map(str, paths)), times_ns),
        )

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows of several indices, with one read of the table."""
        dataset = self._dataset
        try:
            if len(indices) == 1:
                return [dataset[indices[0]]]
            rows: list[Any] = dataset.__getitems__(list(indices))
        except Exception as error:
            raise name_place(error, f"huggingface: {self._arguments['path']}: {describe_rows(indices)}") from error
        return rows

    def get_block_starts(self) -> Sequence[int]:
        """Return the first row of each thousand, as many as `datasets` writes together."""
        return range(0, len(self), 1000)

    @functools.cached_property
    def _dataset(self) -> Any:
        return _load(streaming=False, **self._arguments)


def _describe_files(path: Paths) -> SourceFiles | None:
    """Return the identity of the files of a stream; None for a dataset on the Hub."""
    patterns = list_paths(path, "huggingface")
    if len(patterns) == 1 and Path(patterns[0]).expanduser().is_dir():
        patterns = [str(Path(globbing.escape(patterns[0])) / "**" / "*")]
    elif Path(patterns[0]).suffix not in {".arrow", *_BUILDERS}:
        return None
    return describe_stored_files(find_stored_files(patterns, "huggingface"))


def _load(
    path: Paths,
    *,
    streaming: bool,
    name: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    format: str | None = None,  # noqa: A002 - the word of `datasets`
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a Dataset, or with `streaming` an IterableDataset."""
    dataset = _open(path, streaming=streaming, name=name, split=split, options=dict(options or {}))
    if columns is not None:
        if dataset.column_names is not None:  # None: a stream with unknown columns
            check_columns(columns, dataset.column_names, f"huggingface: {path}")
        dataset = dataset.select_columns(list(columns))
    return dataset if format is None else dataset.with_format(format)


def _open(path: Paths, *, streaming: bool, name: str | None, split: str | None, options: dict[str, Any]) -> Any:
    datasets = import_extra("datasets", "huggingface", "the source `huggingface`")
    patterns = list_paths(path, "huggingface")
    folder = Path(patterns[0]).expanduser()
    if len(patterns) == 1 and any((folder / mark).is_file() for mark in _SAVED_MARKS):
        saved = datasets.load_from_disk(str(folder))
        saved = _choose_split(saved, split, path) if isinstance(saved, Mapping) else saved
        return saved.to_iterable_dataset() if streaming else saved
    suffix = _find_suffix(patterns)
    if suffix == ".arrow":
        files = [file.path for file in find_stored_files(patterns, "huggingface")]
        tables = _explain_errors(patterns, lambda: [datasets.Dataset.from_file(file) for file in files])
        table = _explain_errors(patterns, lambda: datasets.concatenate_datasets(tables))
        return table.to_iterable_dataset() if streaming else table
    names = [patterns[0], name]
    if suffix in _BUILDERS:
        found = find_stored_files(patterns, "huggingface")
        files = [file.path if file.file_system is None else file.name for file in found]
        names, split, options = [_BUILDERS[suffix]], split or "train", {"data_files": files, **options}
    elif len(patterns) != 1:
        raise ValueError(f"huggingface: expected files of a known kind, found {patterns}; give {', '.join(_BUILDERS)}")
    else:
        _refuse_missing_path(patterns[0])
    # Do not pass other values of `split` here, so that an error about a wrong split can list the known ones.
    part = split if split is not None and _combines_splits(split) else None
    loaded = _explain_errors(
        patterns, lambda: datasets.load_dataset(*names, split=part, streaming=streaming, **options)
    )
    return _choose_split(loaded, split, path) if isinstance(loaded, Mapping) else loaded


def _find_suffix(patterns: Sequence[str]) -> str:
    """Return the suffix of all patterns. Raises ValueError if `datasets` would need several builders."""
    suffixes = sorted({Path(pattern).suffix for pattern in patterns})
    if len(suffixes) > 1 and set(suffixes) & {".arrow", *_BUILDERS}:
        raise ValueError(f"huggingface: {list(patterns)} are files of several kinds: {', '.join(suffixes)}; give one")
    return suffixes[0]


def _combines_splits(split: str) -> bool:
    """Whether `split` combines several splits or is a part of one: `train[:10%]`, `train+test` or `all`."""
    return split == "all" or any(mark in split for mark in "[+")


def _explain_errors(patterns: Sequence[str], load: Callable[[], Any]) -> Any:
    """Return the result of `load`. Raises a ValueError of one line with the files for an error of `datasets`."""
    datasets = import_extra("datasets", "huggingface", "the source `huggingface`")
    place = f"huggingface: {', '.join(patterns)}"
    try:
        return load()
    except StopIteration:
        raise ValueError(f"{place} has no rows; name files with at least one") from None
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        # `datasets` only says that an error occurred; its cause has the details.
        reason = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        text = " ".join(str(reason or error).split())
        raise ValueError(f"{place} cannot be read: {text}") from None


def _refuse_missing_path(path: str) -> None:
    """Raise ValueError for an apparent local path that does not exist: `datasets` would ask the Hub for it."""
    local = Path(path).expanduser()
    if is_remote(path) or local.exists():
        return
    has_parent = len(local.parts) > 1 and local.parent.is_dir()
    if path.startswith((".", "/", "~")) or has_parent or path.lower().endswith(_FILE_SUFFIXES) or "*" in path:
        raise ValueError(
            f"huggingface: there is no file or folder {path!r} in the current directory {Path.cwd()}; start stagepipe "
            "in the folder that the path is relative to, or use an absolute path"
        )


def _choose_split(splits: Mapping[str, Any], split: str | None, path: object) -> Any:
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None or split not in splits:
        known = ", ".join(f"`{one}`" for one in splits)
        wanted = "several splits" if split is None else f"no split `{split}`"
        raise ValueError(f"huggingface: {path} has {wanted}; set `split` to one of {known}")
    return splits[split]
