"""`FilesSource`: the files that match a pattern, with their path, bytes and label. Runs in the source's process."""

from __future__ import annotations

import glob as globbing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from stagepipe.sources.shuffled_order import ShuffledOrder


class FilesSource:
    """Yield an item `{"path": str}` for each file that matches `glob`, in the order of the paths.

    In YAML it is `uses: stagepipe.sources.files`.

    Args:
        glob: one pattern or a list; `**` matches folders at any depth, `~` is the home folder. A relative pattern is
            relative to the current directory. A file that matches two patterns is yielded once.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        read: add `data`, the file's content as `bytes`. Without it the first stage opens the file, in parallel in its
            workers; with it no stage needs to open files.
        labels: `"folder"` adds `label`, the name of the folder that contains the file.

    >>> FilesSource("pyproject.toml")[0]  # doctest: +SKIP
    {'path': 'pyproject.toml'}

    Raises ValueError if no file matches or `labels` is unknown, and OSError for a file that cannot be read.
    """

    def __init__(
        self,
        glob: str | list[str],
        *,
        shuffle: bool = False,
        read: bool = False,
        labels: Literal["none", "folder"] = "none",
    ) -> None:
        if labels not in ("none", "folder"):
            raise ValueError(f"files: labels is {labels!r}; give `none` or `folder`")
        self.shuffle = shuffle
        self.read = read
        self.labels = labels
        self._paths = _find_files([glob] if isinstance(glob, str) else list(glob))
        self._order = ShuffledOrder(len(self._paths), "files")

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order. It depends only on epoch and seed, so that a resume finds its position."""
        if self.shuffle:
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._paths[self._order[index]]
        item: dict[str, Any] = {"path": path}
        if self.read:
            item["data"] = Path(path).read_bytes()
        if self.labels == "folder":
            item["label"] = Path(path).absolute().parent.name
        return item

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))


def _find_files(patterns: list[str]) -> list[str]:
    paths: set[str] = set()
    for pattern in patterns:
        # Not Path.glob: it needs a separate folder and refuses an absolute pattern.
        matches = globbing.iglob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207
        paths.update(match for match in matches if Path(match).is_file())
    if not paths:
        raise ValueError(
            f"files: no file matches {', '.join(map(repr, patterns))} in the current directory {Path.cwd()}; start "
            "stagepipe in the folder that the pattern is relative to, or use an absolute pattern"
        )
    return sorted(paths)
