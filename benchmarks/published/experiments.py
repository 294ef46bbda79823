"""The experiments, and the published figures of the five write-ups in seconds. E3 is benchmarks/crossover.

The machines of the write-ups differ: compare only rankings and ratios.
"""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.published import e1, e2, e4, e5
from benchmarks.published.model import Contestant, Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (e1.EXPERIMENT, e2.EXPERIMENT, e4.EXPERIMENT, e5.CALLS, e5.QUEUES)
}


def contestant(experiment: str, name: str) -> Contestant:
    """Return a contestant by its name. Raise KeyError if there is none."""
    return {known.name: known for known in EXPERIMENTS[experiment].contestants}[name]


def resolve(text: str) -> Any:
    """Import and return the object named by "module:name"."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


E1_RECEIVE_AND_RESTORE_S = {
    "named pipe, base64": 1.17,
    "mmap of a file, base64": 1.39,
    "MPI": 1.39,
    "stdio pipe, base64": 1.73,
    "TCP, base64": 1.88,
    "file on disk, base64": 2.17,
    "queue": 1.14,
}
"""The time of the responder. The write-up has no figure for the file on a RAM disk."""

E2_SEND_RECEIVE_S = {
    "Queue": (0.00, 5.33),
    "Pipe": (3.12, 5.33),
    "Array": (3.02, 2.55),
    "Manager list": (10.19, 10.29),
    "RawArray through NumPy": (5.61, 0.18),
    "File": (3.86, 5.26),
    "Socket": (4.13, 5.34),
}
"""At 10^8 integers, with Python 3.7."""

E2_PIPE_SEND_RECEIVE_S = {
    "10^5": (0.011, 0.004),
    "10^6": (0.032, 0.071),
    "10^7": (0.324, 0.643),
    "10^8": (3.22, 6.41),
}
"""Pipe by number of integers."""

E4_S = {
    "HTTP + JSON": {"A": 0.290, "B": 1.090, "C": 9.230, "D": 259.0},
    "HTTP + base64": {"A": 0.0264, "B": 0.0515, "C": 0.398, "D": 12.3},
    "WebSocket + bytes": {"A": 0.00427, "B": 0.0150, "C": 0.171, "D": 5.14},
    "HTTP + shared memory": {"A": 0.0107, "B": 0.0181, "C": 0.127, "D": 3.13},
    "WebSocket + shared memory": {"A": 0.00434, "B": 0.0149, "C": 0.127, "D": 3.82},
    "Listener/Client": {"A": 0.00700, "B": 0.0172, "C": 0.162, "D": 4.73},
    "gRPC + bytes": {"A": 0.00734, "B": 0.0286, "C": 0.291, "D": 7.92},
    "RabbitMQ + bytes": {"A": 0.00935, "B": 0.0257, "C": 0.243},
}
"""Including the creation of the random array."""

E5_EIGHT_WORKERS_S = {
    "plain": {"empty": 0.000003, "fibonacci": 1.59, "primes": 4.22, "file_io": 0.750},
    "threads": {"empty": 0.0080, "fibonacci": 1.60, "primes": 5.11, "file_io": 2.44},
    "processes": {"empty": 0.0055, "fibonacci": 0.418, "primes": 1.08, "file_io": 0.203},
}
"""Eight calls by eight workers, in 2008."""
