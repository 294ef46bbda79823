"""Reads the attributes of a class from its source. Imports nothing.

Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import inspect

from stagepipe.config.static_analysis.lookup import Definition, DefinitionLookup, get_assigned_names
from stagepipe.config.static_analysis.modules import BrokenSourceError


def read_class_attribute(uses: object, name: str, lookup: DefinitionLookup) -> object:
    """Return the constant that a class or its nearest base assigns to `name`; None if the source shows none.

    `uses` is a class, the path of one, or any other object, which has the attributes of its class.

    >>> from stagepipe.config.static_analysis import ModuleFinder
    >>> read_class_attribute("stagepipe.stages.Batch", "items_per_output", DefinitionLookup(ModuleFinder()))
    'size'
    """
    if not isinstance(uses, str):
        return getattr(uses if inspect.isclass(uses) else type(uses), name, None)
    try:
        definition = lookup.find_target(uses)
        if not isinstance(definition, Definition) or not isinstance(definition.node, ast.ClassDef):
            return None
        bases = lookup.resolve_bases(definition) or [definition]
    except BrokenSourceError:  # target_checks reports it
        return None
    assignments = (s for base in bases for s in reversed(base.node.body) if name in get_assigned_names(s))
    value = getattr(next(assignments, None), "value", None)
    return value.value if isinstance(value, ast.Constant) else None
