"""Errors of the stages that run in this process: they name stage and item. In the caller's process."""

from __future__ import annotations

from types import TracebackType

from stagepipe.core import RunError, name_error_type, with_error_type
from stagepipe.runtime import IsolatedGenerators, StageError, format_error, format_key, format_user_traceback


class NamedErrors:
    """Runs stages in this process: the caller's generators stay as they are, and errors name stage and item."""

    def __init__(self, generators: IsolatedGenerators) -> None:
        """`generators` are those of the run's stages in this process."""
        self._swapped = generators.swap_in()

    def __enter__(self) -> None:
        """Swap the generators."""
        self._swapped.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Swap them back. Raises RunError for the error of a stage."""
        self._swapped.__exit__(kind, error, trace)
        if isinstance(error, StageError):
            item = format_key(error.key)
            run_error = RunError(error.describe(worker=0), stage=error.stage, worker=0, item=item, trace=error.trace)
            raise with_error_type(run_error, name_error_type(error.cause)) from error.cause


def make_build_error(stage: str, error: BaseException) -> RunError:
    """Return the error of a stage that cannot be built in this process."""
    message = f"stage {stage}, worker 0: cannot be built: {format_error(error)}"
    run_error = RunError(message, stage=stage, worker=0, trace=format_user_traceback(error))
    return with_error_type(run_error, name_error_type(error))
