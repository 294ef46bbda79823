"""Records a digest of each item that a worker sends. In the worker's process, in determinism checks only."""

from __future__ import annotations

from time import sleep

from stagepipe.core import Key
from stagepipe.runtime.execution import Box, ItemHeader, StageError, StageRunner
from stagepipe.runtime.protocol import ItemDigestEvent, WorkerSpec
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.hop_output import HopOutput
from stagepipe.transport import Sender

_PAUSE_S = 0.02
"""Time after an item in which another worker of the stage takes the next one."""


class DigestedHopOutput(HopOutput):
    """The HopOutput of a determinism check: before it sends something for an item, it reports a digest of that."""

    def __init__(self, sender: Sender, spec: WorkerSpec, control: ControlClient) -> None:
        """A worker that is not the source's pauses after each item."""
        super().__init__(sender, output_segment=0)  # a check never resumes inside an item, so no segment matters
        self._spec = spec
        self._control = control
        self._pause_s = 0.0 if spec.in_fd is None else _PAUSE_S

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Report the value of an item, and send it."""
        from stagepipe.fingerprint import compute_fingerprint

        self._report(key, compute_fingerprint(box[0]).digest)
        super().send_item(key, box, samples, meta)
        sleep(self._pause_s)

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Report that the item was dropped."""
        self._report(key, b"dropped")
        super().send_tombstone(key, samples, meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report that the item failed."""
        self._report(key, f"failed: {error}".encode())
        super().send_skip(stage, key, error, header)

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Report the number of parts."""
        self._report(key, b"%d parts" % part_count)
        super().send_close(key, part_count, meta)

    def _report(self, key: Key, digest: bytes) -> None:
        spec = self._spec
        self._control.send(ItemDigestEvent(process=spec.plan.name, worker=spec.worker, key=key, digest=digest))
