"""`npz`: one NumPy archive an item, complete or not there at all. Runs where the pipeline's output arrives."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from stagepipe.sinks.flat import arrays_of

_NUMBERED = re.compile(r"\d{6,}\.npz")
_PARTIAL = re.compile(r"\d{6,}\.tmp\d+")


class npz:  # noqa: N801 - written `uses: stagepipe.sinks.npz` in YAML, where it reads as a noun
    """Write each item to `path/000000.npz`, `path/000001.npz` ... See `stagepipe.sinks.flat` for what becomes of it.

    Args:
        path: the folder, made if it is missing; relative to the current directory.
        compress: deflate the arrays: smaller, and many times slower to write.
        overwrite: delete the numbered archives of an earlier run first. Without it, a folder that holds anything is
            refused.
        start: the number of the first item. `run --resume` sets it; above 0 the folder may hold what came before.

    A file gets its name only when it is complete, so a crash leaves none that is half written.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> npz(folder)({"x": np.arange(3)})
    >>> np.load(f"{folder}/000000.npz")["x"]
    array([0, 1, 2])

    Raises FileExistsError for a folder that is not empty, TypeError for an item that npz cannot hold.
    """

    def __init__(self, path: str | Path, *, compress: bool = False, overwrite: bool = False, start: int = 0) -> None:
        self.path: Final = Path(path)
        self.compression: Final = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._count = start
        self.path.mkdir(parents=True, exist_ok=True)
        if start:
            _remove(self.path, _PARTIAL)  # of the run before, which was killed
        if overwrite and not start:
            _remove(self.path, _NUMBERED)
        elif not start and any(self.path.iterdir()):
            raise FileExistsError(
                f"npz: the folder {self.path.absolute()} is not empty; name another, or set `overwrite: true` to "
                "delete its numbered .npz files"
            )

    def __call__(self, item: Any) -> None:
        """Write one item under the next number."""
        final = self.path / f"{self._count:06d}.npz"
        partial = final.with_suffix(f".tmp{os.getpid()}")
        try:
            _write(partial, arrays_of(item), self.compression)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
        self._count += 1

    def close(self) -> None:
        """Nothing is open between items."""


def _write(path: Path, arrays: dict[str, np.ndarray], compression: int) -> None:
    """As `np.savez` does, which cannot be used: it takes names as keywords, and has one called `file` of its own."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _remove(folder: Path, names: re.Pattern[str]) -> None:
    for file in folder.iterdir():
        if names.fullmatch(file.name):
            file.unlink()
