"""Splits a docstring in Google's style: what it says, and what it says of each argument. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_SECTION = "Args:"
_PATH_IN_YAML = re.compile(r" (In YAML|YAML)\b.*")
_ENTRY = re.compile(r"(\w+(?:, \w+)*): +(.*)")


@dataclass(frozen=True)
class ParsedDocstring:
    """`description` is the text without the arguments, the doctests and the errors; `arguments` has one text a name."""

    description: str
    arguments: dict[str, str]

    @property
    def summary(self) -> str:
        """The first line, without its last sentence where that says what the path in YAML is."""
        return _PATH_IN_YAML.sub("", self.description.partition("\n")[0])


def parse_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ParsedDocstring:
    r"""Return the parts of the docstring of a class or function; empty without one.

    >>> tree = ast.parse("def f(x):\n    '''Do it.\n\n    Args:\n        x: a number,\n            any.\n    '''")
    >>> parse_docstring(tree.body[0])
    ParsedDocstring(description='Do it.', arguments={'x': 'a number, any.'})
    """
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    arguments: dict[str, str] = {}
    description: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith(_SECTION):
            arguments |= dict(_read_entries(paragraph.splitlines()[1:]))
        elif not paragraph.startswith((">>>", "Raises ")):
            description.append(paragraph)
    return ParsedDocstring("\n\n".join(description), arguments)


def _read_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each name of the section with its text, in one line. An entry may name several."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    entries: list[str] = []
    for line in lines:
        if line[indent : indent + 1].isspace() and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is not None:
            yield from ((name, match[2]) for name in match[1].split(", "))
