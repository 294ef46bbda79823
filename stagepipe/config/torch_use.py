"""Whether a config's targets import torch: workers are then forked from a process that has imported it. Pure.

The answer comes from the imports at the top of the targets' own modules. It saves time and changes nothing else: a
worker whose stage imports torch by another way imports it itself. Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stagepipe.config.static_analysis import (
    BrokenSourceError,
    Definition,
    DefinitionLookup,
    ImportedName,
    ModuleFinder,
    ParsedModule,
)
from stagepipe.config.yaml import MapNode, Node, ScalarNode, iter_children
from stagepipe.core import names_file, split_target_path

_TORCH_PACKAGES: Final = frozenset({"torch", "torchvision", "torchaudio", "timm", "transformers"})
"""Packages that import torch."""
_TARGET_PATTERN: Final = re.compile(r"[\w./-]+[.:]\w+")


def uses_torch(config: MapNode, config_dir: Path | None) -> bool:
    """Return whether a target in `config`, or in the arguments of one, is of torch or of a module that imports it."""
    lookup = DefinitionLookup(ModuleFinder(config_dir))
    return any(_imports_torch(path, lookup) for path in _iter_target_paths(config))


def _iter_target_paths(node: Node) -> Iterator[str]:
    if isinstance(node, ScalarNode):
        if isinstance(node.value, str) and _TARGET_PATTERN.fullmatch(node.value):
            yield node.value
        return
    for _, child in iter_children(node):
        yield from _iter_target_paths(child)


def _imports_torch(path: str, lookup: DefinitionLookup) -> bool:
    if path.partition(".")[0] in _TORCH_PACKAGES:
        return True
    module_path, attributes = split_target_path(path)
    if names_file(module_path) and attributes is None:
        return False  # a data file: a target in a file has a colon
    try:
        target = lookup.find_target(path)
    except BrokenSourceError:  # target_checks reports it, if it is a target
        return False
    module = target.module if isinstance(target, Definition) else target
    if not isinstance(module, ParsedModule):
        return False
    bindings = (binding for entries in module.bindings.values() for binding in entries)
    return any(isinstance(b, ImportedName) and b.module.partition(".")[0] in _TORCH_PACKAGES for b in bindings)
