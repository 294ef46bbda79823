"""Whether a dataset is iterable, a stream, as far as its source shows; nothing is imported."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Final

from stagepipe.config.static.lookup import Definition, Lookup
from stagepipe.config.static.modules import BrokenSourceError, Modules
from stagepipe.core.datasets import is_stream, is_stream_class
from stagepipe.core.targets import file_path, is_file, is_there, split_path

_TORCHS: Final = "IterableDataset"


def is_known_stream(uses: object, config_dir: Path | None) -> bool:
    """Whether a dataset is sure to be iterable: a class or its path, or a dataset that is built already.

    >>> is_known_stream(map(abs, [1]), None), is_known_stream("datasets.load_from_disk", None)
    (True, False)
    """
    if inspect.isclass(uses):
        return is_stream_class(uses)
    if not isinstance(uses, str):
        return not callable(uses) and is_stream(uses)
    try:
        lookup = Lookup(Modules(config_dir))
        found = _found(uses, config_dir, lookup)
    except BrokenSourceError:  # told with the other targets
        return False
    return isinstance(found, Definition) and _is_stream(found, lookup)


def _found(path: str, config_dir: Path | None, lookup: Lookup) -> object:
    module, attributes = split_path(path)
    words = [] if attributes is None else attributes.split(".")
    if not is_file(module):
        words = [*module.split("."), *words]
        return lookup.path(None, words) if all(words) else None
    file = file_path(module, config_dir)
    return lookup.path(lookup.modules.file(file), words) if is_there(file) else None


def _is_stream(found: Definition, lookup: Lookup) -> bool:
    """By the nearest class that says it: a base called IterableDataset, or the methods themselves."""
    if not isinstance(found.node, ast.ClassDef):
        return False
    names = {s.name for s in found.node.body if isinstance(s, ast.FunctionDef)}
    if any(_last_word(base) == _TORCHS for base in found.node.bases):
        return True
    if "__getitem__" in names:
        return False
    above = [lookup.expression(found.module, base) for base in found.node.bases]
    if any(isinstance(base, Definition) and _is_stream(base, lookup) for base in above):
        return True
    return "__iter__" in names and not above


def _last_word(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
