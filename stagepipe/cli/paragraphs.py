"""Joins the lines of docstrings into paragraphs, which a terminal of any width can wrap. Pure."""

from __future__ import annotations

import re


def join_lines(text: str) -> str:
    r"""Return `text` with each paragraph and each entry of a list in one line. Other indented lines stay as they are.

    >>> join_lines("Read it.\n\nOne line\nand another.\n\n- a\n  long\n- b")
    'Read it.\n\nOne line and another.\n\n- a long\n- b'
    """
    return "\n\n".join(_join_paragraph(paragraph) for paragraph in text.split("\n\n"))


def _join_paragraph(paragraph: str) -> str:
    is_list = paragraph.startswith("- ")
    if not is_list and re.search(r"^ ", paragraph, re.MULTILINE):
        return paragraph
    return re.sub(r"\n *+(?!- )" if is_list else r"\n", " ", paragraph)
