"""Runs a function in each worker that starts. In the caller's process, which names the function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stagepipe.runtime import WORKER_START_HOOK


@contextlib.contextmanager
def worker_start_hook(target: str, argument: str = "") -> Iterator[None]:
    """Let each worker that starts inside this context call `target` once, before it connects to the supervisor.

    `target` is "package.module:function" and must be importable in the worker. It is called with the worker's
    `WorkerSpec`; `argument` is its `start_hook_argument`. Successors of workers that die call it too. An error that
    it raises ends the worker. Contexts nest: the inner hook replaces the outer one.

    >>> with worker_start_hook("my_tests.hooks:print_spec", "verbose"):
    ...     pass  # run a pipeline here
    """
    previous_target, previous_argument = WORKER_START_HOOK.target, WORKER_START_HOOK.argument
    WORKER_START_HOOK.target = target
    WORKER_START_HOOK.argument = argument
    try:
        yield
    finally:
        WORKER_START_HOOK.target = previous_target
        WORKER_START_HOOK.argument = previous_argument
