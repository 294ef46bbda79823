"""Where the runs of `stagepipe tune` write: temporary folders in place of the config's own.

A run of a pipeline writes to the folders of its sinks (shards, journals), to those of `cache`, and to the files of
`report`. `OutputSandbox` rewrites a spec so that it writes to a new folder next to each of these instead, on the same
file system, because a disk's speed is a part of what is measured; no report is written. A sink that is not built in may
write anywhere, so it is refused unless the user allows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stagepipe.core import UsageError
from stagepipe.spec import CacheSpec, PipelineSpec, ReportSpec, SinkSpec

_BUILT_IN_SINKS: Final = "stagepipe.sinks"
_PATH: Final = "path"
_PREFIX: Final = ".stagepipe-tune-"
_WATCHER: Final = 'cat > /dev/null; sleep 2; rm -rf -- "$@"'
"""Ends with this process, however that ends, and removes the folders after 2 s: workers that outlive their caller by
some milliseconds may still be writing."""


class OutputSandbox:
    """Temporary folders for what runs write. A context manager: leaving it removes them.

    They are also removed if this process is killed.
    """

    def __init__(self, spec: PipelineSpec, *, allow_writes: bool = False) -> None:
        """Find where the pipeline would write. Raises UsageError for a sink that may write anywhere.

        `allow_writes`: such a sink runs, and what it writes stays.
        """
        own_sinks = [sink for sink in spec.sinks if not _is_built_in(sink)]
        if own_sinks and not allow_writes:
            names = ", ".join(f"`{sink.target.label}`" for sink in own_sinks)
            raise UsageError(
                f"sink {names}: tune runs the pipeline many times, and what a sink that is not built in writes stays; "
                "allow it with --allow-writes, or tune without it: sink=null"
            )
        self._anchors = {path: _find_anchor(path) for path in _list_outputs(spec)}
        self._folders: dict[Path, Path] = {}
        self._runs = 0
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Make the folders."""
        try:
            for anchor in dict.fromkeys(self._anchors.values()):
                self._folders[anchor] = _make_folder(anchor)
            if self._folders:
                self._watcher = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHER, "sh", *self._folders.values()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C of the terminal is not for it
                )
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Remove the folders."""
        self._close()

    def redirect(self, spec: PipelineSpec) -> PipelineSpec:
        """Return the spec of a run that writes to new, empty folders. What earlier runs wrote is deleted."""
        self.clear()
        self._runs += 1
        sinks = tuple(self._redirect_sink(sink) for sink in spec.sinks)
        stages = tuple(replace(stage, cache=self._redirect_cache(stage.cache)) for stage in spec.stages)
        source = replace(spec.source, cache=self._redirect_cache(spec.source.cache))
        return replace(spec, source=source, sinks=sinks, stages=stages, report=ReportSpec())

    def clear(self) -> None:
        """Delete what the runs so far have written."""
        for folder in self._folders.values():
            for path in folder.iterdir():
                shutil.rmtree(path, ignore_errors=True)

    def _redirect_sink(self, sink: SinkSpec) -> SinkSpec:
        if _PATH not in sink.target.arguments or not _has_folder(sink):
            return sink
        arguments = {**sink.target.arguments, _PATH: self._place(_get_path(sink.target.arguments))}
        return replace(sink, target=replace(sink.target, arguments=arguments))

    def _redirect_cache(self, cache: CacheSpec | None) -> CacheSpec | None:
        return None if cache is None else replace(cache, path=self._place(_get_cache_path(cache.path)))

    def _place(self, path: Path) -> str:
        """Return the folder that takes the place of `path` in this run."""
        number = list(self._anchors).index(path)
        return str(self._folders[self._anchors[path]] / f"run-{self._runs}-{number}")

    def _close(self) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        if self._watcher is not None:
            self._watcher.kill()  # it is in a session of its own, without children but `cat`, which ends with its pipe
            with contextlib.suppress(OSError):
                self._watcher.communicate()
            self._watcher = None


def _is_built_in(sink: SinkSpec) -> bool:
    uses = sink.target.uses
    module = uses.replace(":", ".") if isinstance(uses, str) else getattr(uses, "__module__", "")
    return f"{module}.".startswith(f"{_BUILT_IN_SINKS}.")


def _has_folder(sink: SinkSpec) -> bool:
    """Whether `path` is the folder of a sink: of a built-in one, or of a user's `PartSink`, whose contract says so."""
    return _is_built_in(sink) or sink.writes_parts


def _get_path(arguments: Mapping[str, Any]) -> Path:
    return Path(arguments[_PATH])


def _get_cache_path(path: str) -> Path:
    return Path(path).expanduser()


def _list_outputs(spec: PipelineSpec) -> list[Path]:
    sinks = [
        _get_path(sink.target.arguments) for sink in spec.sinks if _has_folder(sink) and _PATH in sink.target.arguments
    ]
    caches = [_get_cache_path(stage.cache.path) for stage in (spec.source, *spec.stages) if stage.cache]
    return [*dict.fromkeys([*sinks, *caches])]


def _find_anchor(path: Path) -> Path:
    """Return the folder in which the temporary folder for `path` is made: next to it, on the same file system.

    The parent of a folder that is a mount point is on another one: then it is the folder itself.
    """
    path = path.resolve()
    if not path.exists():
        return next(parent for parent in path.parents if parent.exists())
    return path.parent if path.parent.stat().st_dev == path.stat().st_dev else path


def _make_folder(anchor: Path) -> Path:
    """Make a new folder. Raises UsageError if that is not allowed."""
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=anchor))
    except OSError as error:
        raise UsageError(
            f"tune writes to a temporary folder next to the one of the sink or cache, and {anchor} allows none: "
            f"{os.strerror(error.errno or 0)}; tune with another path: sink.with.path=..."
        ) from None
