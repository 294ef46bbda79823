"""The start hook of workers, for tests. In the caller's process: the worker pool writes it into each worker's spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass
class WorkerStartHook:
    """A function that each worker calls with its WorkerSpec when it starts, before it connects to the supervisor.

    `target` is "package.module:function", importable in the worker; None means no hook. `argument` travels in the spec,
    as `start_hook_argument`.
    """

    target: str | None = None
    argument: str = ""


WORKER_START_HOOK: Final = WorkerStartHook()
"""The hook of all workers that this process starts from now on. Tests set it with `stagepipe.testing`."""
