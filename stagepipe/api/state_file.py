"""The file of `stagepipe run --resume`: a run that was killed continues after the last item of its sink.

Written by the main process of the run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import monotonic
from typing import Final

from stagepipe.api.pipeline import Pipeline
from stagepipe.core import UsageError

_SAVE_INTERVAL_S: Final = 0.5
"""Time between saves, which take about 0.1 ms. After a kill, the sink gets the items since the last save again."""


class StateFile:
    """The state of a run in a file. A save is atomic: the file holds the new state or the previous one."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`. If it is missing, the run starts at its beginning."""
        self._path = path
        self._last_save_s = monotonic()
        self.items_delivered = 0
        """Number of items that the sink had received when the state was loaded."""

    def load(self, pipeline: Pipeline, *, allow_changed: bool = False) -> bool:
        """Load the state into `pipeline`. Returns False if that run is finished.

        Raises UsageError if the file does not hold a state, or holds the state of a different config; see
        `Pipeline.load_state_dict`.
        """
        for stale_tmp_path in self._path.parent.glob(f"{self._path.name}.tmp*"):  # left by a run that was killed
            stale_tmp_path.unlink(missing_ok=True)
        try:
            state = json.loads(self._path.read_text())
        except FileNotFoundError:
            return True
        except (OSError, ValueError) as error:
            message = (
                f"{self._path} does not hold the state of a run ({error}); use another file, or delete it to start over"
            )
            raise UsageError(message) from error
        pipeline.load_state_dict(state, allow_changed=allow_changed)
        self.items_delivered = pipeline.items_yielded
        return not pipeline.epoch

    def save_if_due(self, pipeline: Pipeline) -> None:
        """Save the state if the last save is more than half a second ago."""
        if monotonic() - self._last_save_s > _SAVE_INTERVAL_S:
            self.save(pipeline)

    def save(self, pipeline: Pipeline) -> None:
        """Save the state. The sink must have received all items up to it."""
        self._last_save_s = monotonic()
        tmp_path = self._path.with_name(f"{self._path.name}.tmp{os.getpid()}")
        try:
            tmp_path.write_text(json.dumps(pipeline.state_dict()))
            tmp_path.replace(self._path)
        finally:
            tmp_path.unlink(missing_ok=True)
