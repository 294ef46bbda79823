"""Reports what ends a worker's work, until the supervisor has decided what follows. In the worker's process."""

from __future__ import annotations

from stagepipe.core import ArenaFullError, name_error_type
from stagepipe.runtime.execution import StageError
from stagepipe.runtime.protocol import (
    ArenaFullEvent,
    FailureEvent,
    WorkerSpec,
    describe_failure,
    format_error,
    format_item,
    format_key,
    format_user_traceback,
    read_only_hint,
)
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.timing import Board
from stagepipe.transport import SharedMemoryPool


class FailureReporter:
    """Sends the events for errors that end a worker's work, with the stage and the item they belong to."""

    def __init__(self, spec: WorkerSpec, control: ControlClient, board: Board, memory: SharedMemoryPool) -> None:
        """Send through `control`; the board names the current item."""
        self._spec = spec
        self._control = control
        self._region = board.region(spec.process)
        self._memory = memory

    def report_build_failure(self, stage: str, error: BaseException) -> None:
        """Report that a stage, or what runs it, cannot be built."""
        message = describe_failure(stage, self._spec.worker, "", f"cannot be built: {format_error(error)}")
        self._send_failure(0, stage, "", message, format_user_traceback(error), name_error_type(error))

    def report(self, generation: int, error: Exception) -> None:
        """Report an error of an item: of its stage, of the memory, of the transport, or an unpicklable item."""
        stages = self._spec.plan.stages
        if isinstance(error, StageError):
            message = error.describe(self._spec.worker, read_only_hint(error.cause, stages[0].row))
            error_type = name_error_type(error.cause)
            self._send_failure(generation, error.stage, format_key(error.key), message, error.trace, error_type)
            return
        item = format_item(self._spec.shard, self._region.current_key[:1])
        if isinstance(error, ArenaFullError):
            self._send_arena_full(generation, stages[-1].row, item, error)
        else:
            message = describe_failure(stages[-1].row, self._spec.worker, item, format_error(error))
            self._send_failure(generation, stages[-1].row, item, message, format_user_traceback(error))

    def _send_failure(  # noqa: PLR0917 - the fields of the event
        self, generation: int, stage: str, item: str, message: str, trace: str, error_type: str = ""
    ) -> None:
        event = FailureEvent(
            process=self._spec.process,
            stage=stage,
            worker=self._spec.worker,
            item=item,
            message=message,
            trace=trace,
            generation=generation,
            error_type=error_type,
        )
        self._control.send(event)

    def _send_arena_full(self, generation: int, stage: str, item: str, error: ArenaFullError) -> None:
        event = ArenaFullEvent(
            process=self._spec.process,
            stage=stage,
            worker=self._spec.worker,
            item=item,
            generation=generation,
            error=str(error),
            held_bytes=self._memory.held_bytes(),  # the frames of the failed call still hold their arrays
        )
        self._control.send(event)
