"""Elements and tables of HTML. All text is escaped here, and nowhere else. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import Final


class Markup(str):
    """HTML that is complete: it is not escaped again."""

    __slots__ = ()


Content = str | Markup
"""A plain `str` is text, and is escaped; a `Markup` is not."""

_VOID_ELEMENTS: Final = frozenset({"meta", "path", "wbr"})
_MAX_NARROW_COLUMNS: Final = 3
"""A table with more columns is wider than the screen of a phone: it scrolls there, and says so."""


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element. An attribute of None or False is left out; `_` in its name stands for `-` (`class_`: `class`).

    >>> element("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    pairs = "".join(_format_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID_ELEMENTS:
        return Markup(f"<{tag}{pairs}/>")
    return Markup(f"<{tag}{pairs}>{join(content)}</{tag}>")


def join(parts: Iterable[Content]) -> Markup:
    """Return the parts one after the other."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def break_name(name: str) -> Markup:
    """Return a name that may break into lines after each `_`, `-`, `.` and `/`."""
    return Markup("<wbr/>".join(map(escape, re.findall(r"[^_./-]*[_./-]|[^_./-]+", name))))


def fold(title: str, *content: Content, name: str | None = None, is_open: bool = False) -> Markup:
    """Return content that opens and closes under its title."""
    return element("details", element("summary", title), *content, id=name, open=is_open)


def table(
    heading: Sequence[Content], rows: Iterable[Sequence[Content]], *, caption: str, text: Container[int] = (0,)
) -> Markup:
    """Return a table that scrolls by itself where it is too wide. `text`: the columns that are no figures."""
    head = join(
        element("th", name, scope="col", class_=None if index in text else "n") for index, name in enumerate(heading)
    )
    body = join(
        element(
            "tr",
            *(
                element("th", cell, scope="row")
                if index == 0
                else element("td", cell, class_=None if index in text else "n")
                for index, cell in enumerate(row)
            ),
        )
        for row in rows
    )
    content = join((element("thead", element("tr", head)), element("tbody", body)))
    is_wide = len(heading) > _MAX_NARROW_COLUMNS
    scroll = element("div", element("table", content), class_="scroll", tabindex="0", role="region", aria_label=caption)
    return element("div", element("p", caption, class_="caption"), scroll, class_="wide" if is_wide else None)


def _format_attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}.get(name, name)
    if value is True:
        return f' {name}=""'
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'
