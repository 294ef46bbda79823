"""Sends the current seek to the workers: over the board, or over the control channel. In the caller's process.

The recovery coordinator calls it with its lock held, on the consumer's thread or on the supervisor's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stagepipe.runtime.protocol import Seek, encode_message
from stagepipe.runtime.supervisor.worker_process import WorkerProcess
from stagepipe.timing import Board
from stagepipe.transport import WakeEvent

SendCommand = Callable[[int, bytes], None]
"""Sends an encoded command to the worker with this process index."""


class SeekPublisher:
    """Makes a seek known to all ready workers. One that becomes ready later gets it by `send`."""

    def __init__(
        self,
        board: Board,
        wake_events: Mapping[int, WakeEvent],
        workers: Mapping[int, WorkerProcess],
        send_command: SendCommand,
    ) -> None:
        """`wake_events` and `workers` are live mappings, by process index."""
        self._board = board
        self._wake_events = wake_events
        self._workers = workers
        self._send_command = send_command

    def publish(self, seek: Seek) -> None:
        """Begin the seek's generation on the board, and wake all ready workers."""
        encoded_seek = encode_message(seek)
        is_on_board = self._board.publish_seek(seek.generation, encoded_seek)
        self._board.generation = seek.generation
        for process_index, worker in self._workers.items():
            if worker.is_ready and is_on_board:
                # A wake event involves two threads fewer than the control channel.
                self._wake_events[process_index].set()
            elif worker.is_ready:
                self._send_command(process_index, encoded_seek)

    def send(self, seek: Seek, process_index: int) -> None:
        """Send the seek to one worker, which has just become ready."""
        self._send_command(process_index, encode_message(seek))
