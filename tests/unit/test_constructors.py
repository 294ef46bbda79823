"""Types with more than four fields are built by keyword: a reader sees which value is which."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stagepipe.core import PACKAGE_DIR

MAX_POSITIONAL_FIELDS = 4
POSITIONAL = {
    "ConfigKey": "a table, one line for each key",
    "Context": "made for each item",
    "Cursor": "read from old states by position, and made for each item",
    "EncodedBuffer": "made for each buffer",
    "ReceivedPacket": "made for each packet",
}
"""Types that may be built by position, with the reason."""


def value_types() -> Iterator[tuple[str, int, bool]]:
    """Each dataclass and struct of the package: its name, how many fields it has, whether it is keyword-only."""
    for path in PACKAGE_DIR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
                head = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases, *node.keywords]))
                if "dataclass" in head or "Struct" in head:
                    yield node.name, len(fields), "kw_only=True" in head


def test_types_with_many_fields_are_keyword_only():
    by_position = {name for name, fields, kw_only in value_types() if fields > MAX_POSITIONAL_FIELDS and not kw_only}
    assert by_position == set(POSITIONAL)
