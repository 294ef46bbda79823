"""Killing workers from outside, and waiting until that is mended."""

import os
import signal
import time
from collections.abc import Callable

from stagepipe import Pipeline

READY_S = 20.0


def kill(running: Pipeline, number: int, signal_number: int = signal.SIGKILL) -> None:
    """Kill a worker by its number, as soon as it is ready; the supervisor has seen it when this returns."""
    supervisor = running._run._supervisor
    workers, restarts = supervisor.workers, supervisor.recovery.restarts
    number %= len(workers)
    until(lambda: workers[number].ready and workers[number].poll() is None)
    seen = len(restarts)
    os.kill(workers[number].pid, signal_number)
    until(lambda: len(restarts) > seen or supervisor.failure is not None)


def until_ready(running: Pipeline) -> None:
    """Wait until all workers run, the successors too."""
    workers = running._run._supervisor.workers
    until(lambda: all(worker.ready and worker.poll() is None for worker in list(workers.values())))


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds. TimeoutError after a while."""
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        time.sleep(0.01)
