"""What is at the end of an import path, read from source files: nothing is imported, nothing runs.

A config must be answered in a moment and without side effects, even where importing its targets takes ten seconds.
`modules` finds and parses, `lookup` follows names, `signatures` reads what a function or class takes, `streams` whether
a dataset is iterable. Where the source does not tell (C extensions, lazy modules, unknown decorators), the answer is
UNDECIDED and nobody complains.
"""

from stagepipe.config.static.lookup import UNDECIDED, Absent, Definition, Lookup, Undecided
from stagepipe.config.static.modules import BrokenSourceError, Module, Modules
from stagepipe.config.static.signatures import Callee, Kind, callee_of, callee_of_object
from stagepipe.config.static.streams import is_known_stream

__all__ = [
    "UNDECIDED",
    "Absent",
    "BrokenSourceError",
    "Callee",
    "Definition",
    "Kind",
    "Lookup",
    "Module",
    "Modules",
    "Undecided",
    "callee_of",
    "callee_of_object",
    "is_known_stream",
]
