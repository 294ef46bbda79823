"""A job that a power cut ends, and that is resumed, writes what an undisturbed one writes.

The worst case: after the cut, a file has the content of its last fsync, and a folder the names of its last one. A file
that was never synced is empty, and a name that was not is missing.
"""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stagepipe.api import shard_output
from tests.support.sink_output import fit_arguments, list_leftovers, make_config, read_bytes, write

COUNT = 5


class Disk:
    """What fsync has made durable of a folder. `on_sync` is called after each."""

    def __init__(self, on_sync: Callable[[], None]) -> None:
        self._on_sync = on_sync
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept_fds: list[int] = []

    def sync(self, fd: int) -> None:
        """Stand for os.fsync and os.fdatasync."""
        info, link = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        if stat.S_ISDIR(info.st_mode):
            with os.scandir(link.readlink()) as entries:
                self._names[link.readlink()] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[info.st_ino] = link.read_bytes()
            self._kept_fds.append(os.dup(fd))  # so that no other file gets the same inode
        self._on_sync()

    def read(self, folder: Path) -> dict[Path, bytes | None]:
        """Return the durable files and folders (None) by path."""
        found: dict[Path, bytes | None] = {}
        for name, inode in self._names.get(folder, {}).items():
            path = folder / name
            if path in self._names or path.is_dir():
                found |= {path: None, **self.read(path)}
            else:
                found[path] = self._contents.get(inode, b"")
        return found

    def close(self) -> None:
        for fd in self._kept_fds:
            os.close(fd)


def restore(folder: Path, files: dict[Path, bytes | None]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for path, data in files.items():
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(data)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "images", "zarr", "huggingface"])
def test_a_power_cut_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(shard_output, "_INTERVAL_COMMITS", 0)
    out = tmp_path / "out"
    config = make_config(out, kind, COUNT, **fit_arguments(kind, shard_items=4, part_items=2))
    moments: list[dict[Path, bytes | None]] = []
    disk = Disk(lambda: moments.append(disk.read(out)))
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, disk.sync)
    write(config)
    disk.close()
    expected = read_bytes(out)
    shards = {path: data for path, data in moments[-1].items() if data is not None and path.name[0] != "."}
    assert {str(path.relative_to(out)): data for path, data in shards.items()} == expected
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
    for files in moments[:: 1 if kind == "parquet" else 3]:
        restore(out, files)
        write(config, resume=True)
        assert read_bytes(out) == expected
        assert set(list_leftovers(out)) <= {".stagepipe-moves"}  # of a finished job, whose last deletion the cut undid
    assert len(moments) > 10
