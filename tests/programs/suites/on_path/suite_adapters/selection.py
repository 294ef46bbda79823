"""A pytest plugin: tests that are not applicable are not run."""

import os
from fnmatch import fnmatchcase
from typing import Any

_EXCLUDED = os.environ.get("STAGEPIPE_EXCLUDED_TESTS", "").split("\n")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect what the page lists as not applicable."""
    kept = [item for item in items if not any(_is_named(item.nodeid, pattern) for pattern in _EXCLUDED)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_named(node: str, pattern: str) -> bool:
    file, _, test = node.partition("::")
    return fnmatchcase(test, pattern) or fnmatchcase(f"{file.rpartition('/')[2]}::{test}", pattern)
