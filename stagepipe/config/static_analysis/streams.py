"""Tells from source files whether a dataset is iterable (a stream). Imports nothing.

Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Final

from stagepipe.config.static_analysis.lookup import Definition, DefinitionLookup
from stagepipe.config.static_analysis.modules import BrokenSourceError, ModuleFinder
from stagepipe.core import is_stream, is_stream_class

_TORCH_STREAM_CLASS_NAME: Final = "IterableDataset"


def is_known_stream(uses: object, config_dir: Path | None) -> bool:
    """Return whether a dataset is certainly iterable. `uses` is a class, the path of one, or a dataset object.

    >>> is_known_stream(map(abs, [1]), None), is_known_stream("datasets.load_from_disk", None)
    (True, False)
    """
    if inspect.isclass(uses):
        return is_stream_class(uses)
    if not isinstance(uses, str):
        return not callable(uses) and is_stream(uses)
    try:
        lookup = DefinitionLookup(ModuleFinder(config_dir))
        definition = lookup.find_target(uses)
    except BrokenSourceError:  # target_checks reports it
        return False
    return isinstance(definition, Definition) and _is_stream_definition(definition, lookup)


def _is_stream_definition(definition: Definition, lookup: DefinitionLookup) -> bool:
    """Decide by the nearest class that shows it: a base named IterableDataset, or its own methods."""
    if not isinstance(definition.node, ast.ClassDef):
        return False
    method_names = {s.name for s in definition.node.body if isinstance(s, ast.FunctionDef)}
    if any(_last_name(base) == _TORCH_STREAM_CLASS_NAME for base in definition.node.bases):
        return True
    if "__getitem__" in method_names:
        return False
    bases = [lookup.resolve_expression(definition.module, base) for base in definition.node.bases]
    if any(isinstance(base, Definition) and _is_stream_definition(base, lookup) for base in bases):
        return True
    return "__iter__" in method_names and not bases


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
