"""What is built in: sources, stages and sinks, with their arguments, as their source files say. Imports none of them.

Runs in the process of `stagepipe list`.

built_ins   `list_built_ins`: reads the faces of `stagepipe.sources`, `stages` and `sinks`
arguments   the arguments of a built-in: type, default and meaning
docstrings  the parts of a docstring
examples    an entry of a config that uses a built-in
"""

from stagepipe.config.catalog.arguments import BuiltInArgument
from stagepipe.config.catalog.built_ins import (
    BuiltIn,
    BuiltInDescription,
    BuiltInKind,
    describe_built_in,
    list_built_ins,
)

__all__ = ["BuiltIn", "BuiltInArgument", "BuiltInDescription", "BuiltInKind", "describe_built_in", "list_built_ins"]
