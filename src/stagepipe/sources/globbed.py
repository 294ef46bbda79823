"""`files`: the files that match a pattern, as items with their path, and on request their bytes and label."""

from __future__ import annotations

import glob as globbing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from stagepipe.sources.order import ShuffledOrder


class files:  # noqa: N801 - written `uses: stagepipe.sources.files` in YAML, where it reads as a noun
    """Items `{"path": str}` for the files that match `glob`, in the order of their names.

    Args:
        glob: one pattern or several; `**` goes through folders to any depth, `~` is the home folder. Relative ones are
            relative to the current directory. A file that two patterns match comes once.
        shuffle: another order in each epoch, drawn from the pipeline's seed and the epoch.
        read: adds `data`, the file's bytes. (Without it the first stage opens the file, which its workers do side by
            side; with it no stage needs to know of files.)
        labels: `folder` adds `label`, the name of the folder that the file is in.

    >>> files("pyproject.toml")[0]  # doctest: +SKIP
    {'path': 'pyproject.toml'}

    Raises ValueError if nothing matches, OSError for a file that cannot be read.
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
        self.shuffle, self.read, self.labels = shuffle, read, labels
        self._paths = _matching([glob] if isinstance(glob, str) else list(glob))
        self._order = ShuffledOrder(len(self._paths), "files")

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order. The same epoch and seed give the same one, so that a resume finds its place."""
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


def _matching(patterns: list[str]) -> list[str]:
    found: set[str] = set()
    for pattern in patterns:
        # Not Path.glob: it wants the folder and the pattern apart, and cannot take an absolute pattern.
        matches = globbing.iglob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207
        found.update(match for match in matches if Path(match).is_file())
    if not found:
        raise ValueError(
            f"files: nothing matches {', '.join(map(repr, patterns))} in the current directory {Path.cwd()}; start "
            "stagepipe in the folder that the pattern is relative to, or write an absolute pattern"
        )
    return sorted(found)
