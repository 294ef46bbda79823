"""Tells whether two Python values do the same: functions by their code, objects by their class and state. Pure.

Runs in the process that takes or loads a state. A fingerprint is the same in every process and run: it holds no address
and depends on no hash seed. It is made as a value travels to workers: what is pickled by name counts by name, what is
pickled with its content counts by its content (`object.__reduce_ex__`, so also by the user's `__getstate__`).

How much of a piece of code counts depends on where it was defined:

- An installed package or the standard library: its name. Their code changes with the version alone.
- Any other module, `__main__` and notebooks: bytecode without line numbers, constants, defaults, closure values, and
  the globals that it reads, which are followed to functions and classes of the same kind. If a function can be
  imported, a global that has no fingerprint (a lock, an open file) counts by its type: it is not sent to workers.
- The state of a random generator does not count, because an unseeded one differs in every process.

No library does this. cloudpickle and dill give other bytes for the same function from another file, from another
notebook session and under another hash seed, and declare that out of scope; `joblib.hash` and `pickle` take a function
by its name; `dask.tokenize` falls back to cloudpickle. None of them can say what differs.

model    `Fingerprint`: a digest, a text and named parts, and its lines, which a state stores and compares
builder  the fingerprint of any value: of code, containers and objects
"""

from stagepipe.fingerprint.builder import compute_fingerprint, get_display_name
from stagepipe.fingerprint.model import describe_fingerprint, find_differences, get_unknown_reason

__all__ = [
    "compute_fingerprint",
    "describe_fingerprint",
    "find_differences",
    "get_display_name",
    "get_unknown_reason",
]
