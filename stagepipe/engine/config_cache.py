"""Files in the user's cache folder about one config each, whatever its workers and fusion. In the caller's process.

Nothing depends on them but advice and the first layout: what cannot be read or written is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import fields
from pathlib import Path

from stagepipe.calibration import make_cache_key
from stagepipe.core import VERSION, get_cache_dir, replace_when_written
from stagepipe.engine.config_description import describe_config
from stagepipe.plan import Shard
from stagepipe.spec import PipelineSpec

MAX_AGE_S = 24 * 3600
"""Age after which what a file holds is no longer used."""
_MAX_FILES = 256
"""Configs with a file, in each folder. The oldest files are deleted."""
_MAX_FILE_BYTES = 1 << 18

_LAYOUT_KEYS = frozenset({"name", "target", "workers", "min_workers", "fuse", "index", "syntax"})
"""Fields of a stage that are not part of the key: the layout, and what the description holds already."""


class ConfigCache:
    """The file of one config in `folder`. Its name changes with the config, `more`, the machine and the version."""

    def __init__(
        self,
        folder: str,
        spec: PipelineSpec,
        limit: int | None,
        shard: Shard,
        more: object = (),
        *,
        with_contents: bool = False,
    ) -> None:
        """Nothing is read yet. `with_contents`: objects from Python count by what they hold, not by name alone."""
        description = describe_config(spec, limit, shard, with_contents=with_contents)
        stages = [
            {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in _LAYOUT_KEYS}
            for stage in spec.stages
        ]
        whole = (spec.name, spec.config_dir, spec.window, spec.memory_bytes, spec.start, spec.transport)
        text = json.dumps(description, sort_keys=True) + repr((whole, stages, make_cache_key(VERSION), more))
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._path = get_cache_dir() / folder / f"{key}.json"

    def read(self) -> bytes:
        """Return the content; nothing if it is missing or not a file of this user. At most a quarter of a megabyte."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that someone put there does not block
            with os.fdopen(fd, "rb") as file:
                if os.fstat(fd).st_uid == os.geteuid():
                    return file.read(_MAX_FILE_BYTES + 1)
        return b""

    def write(self, content: bytes) -> None:
        """Replace the content. Only its owner may read it."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replace_when_written(self._path, mode=0o600) as unfinished:
                unfinished.write_bytes(content)
            _delete_oldest_files(self._path.parent)


def _delete_oldest_files(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_FILES]:
        path.unlink(missing_ok=True)
