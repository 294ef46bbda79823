"""Where a run stands, in a file: so that one whose own process was killed goes on behind the last item of its sink."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import monotonic
from typing import Final

from stagepipe.core import UsageError
from stagepipe.engine.pipeline import Pipeline

_EVERY_S: Final = 0.5
"""Between two writings, which take about 0.1 ms. What the sink had in between, it is given again."""


class StateFile:
    """The state of a pipeline's run in a file that is complete or as it was."""

    def __init__(self, path: Path) -> None:
        """The file may be missing: then the run begins at its start."""
        self._path, self._saved_s = path, monotonic()
        self.had = 0
        """How many items the sink has had when it was loaded."""

    def load(self, pipeline: Pipeline) -> bool:
        """Let `pipeline` go on from there; False if that run is finished.

        Raises UsageError for a file that holds no state, or another config's.
        """
        for left in self._path.parent.glob(f"{self._path.name}.tmp*"):  # by a run that was killed
            left.unlink(missing_ok=True)
        try:
            state = json.loads(self._path.read_text())
        except FileNotFoundError:
            return True
        except (OSError, ValueError) as error:
            message = f"{self._path} holds no state of a run ({error}); name another file, or delete it to begin anew"
            raise UsageError(message) from error
        pipeline.load_state_dict(state)
        self.had = pipeline.items_had
        return not pipeline.epoch

    def save_sometimes(self, pipeline: Pipeline) -> None:
        """Write it, if that has not been done for a while."""
        if monotonic() - self._saved_s > _EVERY_S:
            self.save(pipeline)

    def save(self, pipeline: Pipeline) -> None:
        """Write it. The sink has had all that the state speaks of."""
        self._saved_s = monotonic()
        partial = self._path.with_name(f"{self._path.name}.tmp{os.getpid()}")
        try:
            partial.write_text(json.dumps(pipeline.state_dict()))
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)
