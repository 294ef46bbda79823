"""Compares the behaviour of Python values: functions by their code, objects by their class and state. Pure.

Runs in the process that takes or loads a state. A fingerprint is the same in every process and run: it contains no
address and depends on no hash seed. It treats a value as pickle does: a value that is pickled by name counts by name, a
value that is pickled with its content counts by its content (`object.__reduce_ex__`, so also by the user's
`__getstate__`).

The place of a definition decides how much of the code counts:

- For an installed package or the standard library: its name. Their code changes only with the version.
- For any other module, `__main__` and notebooks: bytecode without line numbers, constants, defaults, closure values,
  and the globals that the code reads, followed to functions and classes of the same kind. If a function can be
  imported, a global without a fingerprint (a lock, an open file) counts by its type, because it is not sent to workers.
- The state of a random generator does not count, because an unseeded one differs in every process.

No library does this. cloudpickle and dill give other bytes for the same function from another file, another notebook
session or under another hash seed, and declare that out of scope; `joblib.hash` and `pickle` identify a function by its
name; `dask.tokenize` falls back to cloudpickle. None of them can name the difference.

model    `Fingerprint`: a digest, a text and named parts; and its lines, which a state stores and compares
builder  the fingerprint of any value: code, containers and objects
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
