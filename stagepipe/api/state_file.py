"""The file of `stagepipe run --resume`: a run that was killed continues after the last item of its sink.

Written by the main process of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from stagepipe.api.pipeline import Pipeline
from stagepipe.core import RunError, UsageError

_SAVE_INTERVAL_S: Final = 0.5
"""Time between saves, which take about 0.1 ms. After a kill, the sink gets the items since the last save again."""


class StateFile:
    """The state of a run in a file. A save is atomic: the file holds the new state or the previous one."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`. If it is missing, the run starts at its beginning."""
        self._path = path
        # One name for all runs, so a run that was killed leaves nothing that the next one would have to find.
        self._partial_path = path.with_name(f".{path.name}.stagepipe-partial")
        self._last_save_s = monotonic()
        self.items_delivered: int | None = None
        """Number of items that the sink had received when the state was loaded; None if there was no state."""

    def load(self, pipeline: Pipeline, *, allow_changed: bool = False) -> bool:
        """Load the state into `pipeline`. Returns False if that run is finished.

        Raises UsageError if the file cannot be written, does not hold a state, or holds the state of a different
        config; see `Pipeline.load_state_dict`.
        """
        first_epoch = pipeline.epoch
        content = self._read()
        if content is None:
            self._check_writable()
            return True
        try:
            pipeline.load_state_dict(self._decode(content), allow_changed=allow_changed)
        except UsageError as error:
            raise self._make_usage_error(str(error)) from error
        self._check_writable()
        self.items_delivered = pipeline.items_yielded
        return pipeline.epoch <= first_epoch

    def _read(self) -> bytes | None:
        """Return the bytes of the file; None if it is missing."""
        if self._path.exists() and not self._path.is_file():
            raise self._make_usage_error("this is not a file; name another one")
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._make_damage_error(error.strerror or error) from error

    def _decode(self, content: bytes) -> Any:
        try:
            return msgspec.json.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._make_damage_error(error) from error

    def _make_damage_error(self, reason: object) -> UsageError:
        return self._make_usage_error(
            f"it does not hold the state of a run ({reason}); use another file, or delete it to start over"
        )

    def _check_writable(self) -> None:
        """Raise UsageError if no state can be written: hours later would be too late."""
        try:
            self._partial_path.write_bytes(b"")
            self._partial_path.unlink()
        except OSError as error:
            message = f"the state cannot be written there ({error.strerror}); use a file in another folder"
            raise self._make_usage_error(message) from error

    def _make_usage_error(self, problem: str) -> UsageError:
        return UsageError(f"--resume {self._path}: {problem}")

    def save_if_due(self, pipeline: Pipeline) -> None:
        """Save the state if the last save is more than half a second ago."""
        if monotonic() - self._last_save_s > _SAVE_INTERVAL_S:
            self.save(pipeline)

    def save(self, pipeline: Pipeline) -> None:
        """Save the state. The sink must have received all items up to it. Raises RunError if it cannot be written."""
        self._last_save_s = monotonic()
        text = json.dumps(pipeline.state_dict())
        try:
            self._partial_path.write_text(text)
            self._partial_path.replace(self._path)
        except OSError as error:
            message = (
                f"the state cannot be written to {self._path}: {error.strerror}; make room and resume, which delivers "
                "the items since the last save again"
            )
            raise RunError(message) from error
