"""Stages for the tests of Ray: which note the node they run on."""

from pathlib import Path
from typing import Any

from tests.support.sink_stages import extract_slowly


class ExtractAndNoteNode:
    """`extract_slowly`; leaves a file with the id of its node in a folder. Without Ray, it leaves none."""

    def __init__(self, folder: str):
        self._folder = folder
        self._has_noted = False

    def __call__(self, number: int) -> dict[str, Any]:
        if not self._has_noted:
            self._has_noted = True
            self._note()
        return extract_slowly(number)

    def _note(self) -> None:
        import ray

        if ray.is_initialized():
            Path(self._folder, ray.get_runtime_context().get_node_id()).touch()
