"""Shows the doctest examples of docstrings as code. An extension of Griffe, which reads the package for the site.

Griffe treats `>>>` as code only in a section "Examples:". Elsewhere it would become a quotation in Markdown.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class DoctestFences(Extension):
    """Put a fence around each doctest example, and remove the comments for doctest."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of `obj`."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(docstring: str) -> str:
    """Return `docstring` with a fence around each example."""

    def fence(example: re.Match[str]) -> str:
        code = re.sub(r"  # doctest:.*", "", example[0])
        return f"{example[1]}```pycon\n{code}\n{example[1]}```"

    return _EXAMPLE.sub(fence, docstring)
