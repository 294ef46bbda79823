"""`FilesSource`: the files that match a pattern, with path, bytes and label. `NumbersSource`: whole numbers."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from stagepipe.core import SourceFiles, describe_files
from stagepipe.sources.order import EpochOrder, ShuffledOrder
from stagepipe.sources.record_source import RecordSource
from stagepipe.sources.remote_requests import read_remote
from stagepipe.sources.stored_files import Paths, StoredFile, iterate_files, require_unchanged, sample_contents


class FilesSource(RecordSource):
    """Yield an item `{"path": str}` for each file that matches `glob`, in the order of the paths.

    In YAML it is `uses: stagepipe.sources.files`.

    Args:
        glob: a path or pattern, such as `"data/**/*.jpg"`, or a list; each must match. `**` matches folders at any
            depth, `~` is the home folder. Relative patterns start at the current directory. A file that matches two
            patterns is yielded once. fsspec opens URLs (`s3://bucket/**/*.jpg`); the path of an item is then a URL.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        read: add `data`, the file's content as `bytes`. Otherwise the first stage opens the files, in its workers. The
            source's workers read the files of URLs.
        labels: `"folder"` adds `label`, the name of the folder that contains the file.
        storage_options: options of fsspec's file system for URLs, such as `{anon: true}`.

    >>> FilesSource("pyproject.toml")[0]  # doctest: +SKIP
    {'path': 'pyproject.toml'}

    Raises ValueError if a pattern matches no file or `labels` is unknown, OSError for an unreadable file, and
    UsageError for a URL without fsspec.
    """

    is_record_source: ClassVar = False  # the source's process yields paths at no cost

    def __init__(
        self,
        glob: Paths,
        *,
        shuffle: bool = False,
        read: bool = False,
        labels: Literal["none", "folder"] = "none",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shuffle=bool(shuffle))
        if labels not in ("none", "folder"):
            raise ValueError(f"files: labels is {labels!r}; give `none` or `folder`")
        self.read = read
        self.labels = labels
        self._remote_files: dict[str, StoredFile] = {}
        found: list[tuple[str, int, int]] = []
        for file in iterate_files(glob, "files", storage_options, "glob"):
            found.append((file.name, file.size, file.modified_ns or 0))
            if file.file_system is not None:
                self._remote_files[file.name] = file
        found.sort()
        # Arrays instead of a StoredFile per file: a million files take 16 MB here.
        self._paths = [path for path, _, _ in found]
        self._sizes = array("q", [size for _, size, _ in found])
        self._times_ns = array("q", [time_ns for _, _, time_ns in found])
        self._order = ShuffledOrder(len(self._paths), "files")

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files, sorted."""
        return tuple(self._paths)

    @property
    def order(self) -> EpochOrder:
        """The order of an epoch, as indices into `paths`."""
        return self._order if self.shuffle else range(len(self._paths))

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order from epoch and seed only, so that a resume finds its position."""
        if self.shuffle:
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read_item(self._order[index])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def read_records(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items of several files, by their indices in the sorted paths."""
        return [self._read_item(index) for index in indices]

    def describe_files(self) -> SourceFiles:
        """Return the identity of the files."""
        if not self._remote_files:
            samples = sample_contents(self._paths, self._times_ns)
            return describe_files(self._paths, self._sizes, self._times_ns, samples)
        remote = [self._remote_files.get(path) for path in self._paths]
        sizes = [size if file is None else file.size for size, file in zip(self._sizes, remote, strict=True)]
        versions = [time if file is None else file.version for time, file in zip(self._times_ns, remote, strict=True)]
        return describe_files(self._paths, sizes, versions)

    def _read_item(self, index: int) -> dict[str, Any]:
        path = self._paths[index]
        item: dict[str, Any] = {"path": path}
        file = self._remote_files.get(path)
        if self.read:
            item["data"] = self._read_local(index) if file is None else read_remote(file, 0, file.size)
        if self.labels == "folder":
            folder = Path(path).absolute() if file is None else Path(unquote(urlsplit(path).path))
            item["label"] = folder.parent.name
        return item

    def _read_local(self, index: int) -> bytes:
        path = self._paths[index]
        with Path(path).open("rb") as file:
            require_unchanged(path, (self._sizes[index], self._times_ns[index]), os.fstat(file.fileno()))
            return file.read()


class NumbersSource(Sequence[int]):
    """Yield the `int`s 0, 1 ... `count` - 1. In YAML it is `uses: stagepipe.sources.numbers`.

    Args:
        count: the number of items, such as `1000`.

    >>> list(NumbersSource(3))
    [0, 1, 2]

    Raises ValueError for a negative `count`.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"numbers: count is {count}; give 0 or more")
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        return self._range[index]

    def read_indices(self, indices: Sequence[int]) -> Sequence[int]:
        """Return several numbers."""
        return indices
