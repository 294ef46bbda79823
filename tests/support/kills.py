"""Kill workers from outside, and wait until the supervisor has seen it or has restarted them."""

import os
import signal
import time
from collections.abc import Callable

from stagepipe import Pipeline

TIMEOUT_S = 20.0


def kill(running: Pipeline, process_index: int, signal_number: int = signal.SIGKILL) -> None:
    """Kill a worker as soon as it is ready. Returns when the supervisor has seen the death."""
    supervisor = running._run._supervisor
    workers, restarts = supervisor.workers, supervisor.recovery.restarts
    process_index %= len(workers)
    until(lambda: workers[process_index].is_ready and workers[process_index].poll() is None)
    count_before = len(restarts)
    os.kill(workers[process_index].pid, signal_number)
    until(lambda: len(restarts) > count_before or supervisor.recovery.failure is not None)


def until_ready(running: Pipeline) -> None:
    """Wait until all workers run and are ready, restarted ones too."""
    workers = running._run._supervisor.workers
    until(lambda: all(worker.is_ready and worker.poll() is None for worker in list(workers.values())))


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds. TimeoutError after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {TIMEOUT_S:.0f} s")
        time.sleep(0.01)
