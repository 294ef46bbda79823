"""Writes overrides into the text of a YAML file, and changes only the lines concerned.

PyYAML's nodes have positions in the text, so a value is replaced, or a key is added or removed, in place. All comments,
blank lines and quotes stay. Libraries that rewrite the whole document lose some: ruamel.yaml 0.18 drops comments inside
`{...}`, joins its lines, and drops text after a removed key.

The positions are those of PyYAML's marks: `index` counts characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import yaml

from stagepipe.config.document import NodeComposer, SourceLocation, parse_override_value, to_plain, write_flow_yaml
from stagepipe.core import UsageError

_NAMED_LISTS: Final = ("stages",)
"""Keys of a config whose value is a list; an override finds an entry by its name."""

_ALIAS: Final = re.compile(r"[\s:]*(\*[^\s,\[\]{}]+)")
_COLON: Final = re.compile(r"\s*:")
_LINE_END: Final = re.compile(r"\r?\n|\Z")


def edit_text(text: str, overrides: Iterable[str], *, keeps_null: bool = False) -> str:
    r"""Return the text with the overrides in it. The value `null` removes the key, unless `keeps_null` is set.

    >>> print(edit_text("stages:\n  - {name: decode}  # reads\n", ["stages.decode.workers=3"]), end="")
    stages:
      - {name: decode, workers: 3}  # reads

    Raises UsageError for a place that cannot be edited, such as a value behind an alias.
    """
    for override in overrides:
        path, _, value_text = override.partition("=")
        value = to_plain(parse_override_value(value_text, SourceLocation(file=f"override {override}")))
        is_removal = value is None and not keeps_null
        text = _Editor(text, path).set(path.split("."), None if is_removal else write_flow_yaml([value])[1:-1])
    return text


class _Editor:
    """Sets one value in a text."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._root = NodeComposer(text).get_single_node()

    def set(self, path: Sequence[str], value: str | None) -> str:
        """Return the text with the value at the path; None removes it."""
        if not isinstance(self._root, yaml.MappingNode):
            raise self._refuse("the file is not a mapping")
        return self._set_in_mapping(self._root, path, value)

    # ------------------------------------------------------------------ find the place

    def _set_in(self, node: yaml.Node, path: Sequence[str], value: str | None) -> str | None:
        """Return the edited text; None if the path continues past a single value."""
        if isinstance(node, yaml.MappingNode):
            return self._set_in_mapping(node, path, value)
        return self._set_in_list(node, path, value) if isinstance(node, yaml.SequenceNode) else None

    def _set_in_mapping(self, node: yaml.MappingNode, path: Sequence[str], value: str | None) -> str:
        step, *rest = path
        found = [index for index, (key, _) in enumerate(node.value) if getattr(key, "value", None) == step]
        if not found and value is not None:
            is_list = node is self._root and step in _NAMED_LISTS and rest
            return self._add_key(node, step, f"[{_make_item(rest, value)}]" if is_list else _nest(rest, value))
        if not found:
            return self._text
        key, child = node.value[found[0]]
        if not rest:
            return self._remove_key(node, found[0]) if value is None else self._replace(key, child, value)
        if self._is_alias(key, child):
            raise self._refuse(f"`{step}` is an alias")
        changed = self._set_in(child, rest, value)
        if changed is None:
            return self._text if value is None else self._replace(key, child, _nest(rest, value))
        return changed

    def _set_in_list(self, node: yaml.SequenceNode, path: Sequence[str], value: str | None) -> str:
        step, *rest = path
        for number, item in enumerate(node.value):
            if step in (str(number), str(number - len(node.value)), _get_name(item)):
                if item.start_mark.index < node.start_mark.index:
                    raise self._refuse(f"`{step}` is an alias")
                changed = self._set_in(item, rest, value) if rest else None
                if changed is None:
                    raise self._refuse(f"`{step}` is a single value")
                return changed
        if value is None:
            return self._text
        return self._add_item(node, _make_item(path, value))

    # ------------------------------------------------------------------ edit there

    def _replace(self, key: yaml.Node, child: yaml.Node, value: str) -> str:
        start, end = self._find_value(key, child)
        if start == end:  # the value is missing
            colon = _COLON.match(self._text, key.end_mark.index)
            return (
                self._splice(colon.end(), colon.end(), f" {value}") if colon else self._splice(end, end, f": {value}")
            )
        return self._splice(start, end, value)

    def _add_key(self, node: yaml.MappingNode, step: str, value: str) -> str:
        entry = f"{step}: {value}"
        if node.flow_style:
            return self._add_to_flow(node, node.value and self._find_entry_end(*node.value[-1]), entry)
        column = node.value[0][0].start_mark.column
        simple = [self._find_value(key, child)[1] for key, child in node.value if self._is_on_one_line(key, child)]
        if not simple:
            start = node.value[0][0].start_mark.index
            return self._splice(start, start, f"{entry}{self._newline}{' ' * column}")
        end = self._find_line_end(simple[-1])
        return self._splice(end, end, f"{self._newline}{' ' * column}{entry}")

    def _add_item(self, node: yaml.SequenceNode, entry: str) -> str:
        if node.flow_style:
            return self._add_to_flow(node, node.value and self._find_end(node.value[-1]), entry)
        end = self._find_line_end(self._find_end(node.value[-1]))
        return self._splice(end, end, f"{self._newline}{' ' * node.start_mark.column}- {entry}")

    def _add_to_flow(self, node: yaml.CollectionNode, last_end: int, entry: str) -> str:
        if not node.value:
            start = self._text.index("{" if isinstance(node, yaml.MappingNode) else "[", node.start_mark.index) + 1
            return self._splice(start, start, entry)
        return self._splice(last_end, last_end, f", {entry}")

    def _remove_key(self, node: yaml.MappingNode, index: int) -> str:
        key, child = node.value[index]
        start, end = key.start_mark.index, self._find_entry_end(key, child)
        following = node.value[index + 1][0].start_mark.index if index + 1 < len(node.value) else None
        if not node.flow_style:
            return self._remove_lines(start, end, following)
        if following is not None:
            next_start = following if "#" not in self._text[end:following] else self._text.index(",", end) + 1
            return self._splice(start, next_start, "")
        previous = self._find_entry_end(*node.value[index - 1]) if index else start
        return self._splice(start if "#" in self._text[previous:start] else previous, end, "")

    def _remove_lines(self, start: int, end: int, following: int | None) -> str:
        line_start = self._text.rfind("\n", 0, start) + 1
        if not self._text[line_start:start].strip():
            line_end = self._find_line_end(end)
            return self._splice(line_start, line_end + len(_LINE_END.match(self._text, line_end)[0]), "")  # type: ignore[index]
        line_end = self._find_line_end(end)  # `- workers: 2`: the next key moves up to the dash
        if following is None:
            return self._splice(start, end, "{}")
        if self._text[line_end:following].strip():
            raise self._refuse("a comment follows it")
        return self._splice(start, following, "")

    # ------------------------------------------------------------------ places in the text

    def _find_value(self, key: yaml.Node, child: yaml.Node) -> tuple[int, int]:
        """Return the start and the end of a key's value; if it is missing, both are the end of the key."""
        if self._is_alias(key, child):
            alias = _ALIAS.match(self._text, key.end_mark.index)
            if alias is None:
                raise self._refuse("it is an alias")
            return alias.span(1)
        if child.start_mark.index == child.end_mark.index:
            return key.end_mark.index, key.end_mark.index
        return child.start_mark.index, self._find_end(child)

    def _find_entry_end(self, key: yaml.Node, child: yaml.Node) -> int:
        """Return the end of a key's value, or of its colon if the value is missing."""
        start, end = self._find_value(key, child)
        colon = _COLON.match(self._text, end) if start == end else None
        return colon.end() if colon else end

    def _find_end(self, node: yaml.Node) -> int:
        """Return the end of a node, without the comments and blank lines that follow a block."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            if isinstance(node, yaml.MappingNode):
                return self._find_entry_end(*last)
            return self._find_end(last) if last.start_mark.index >= node.start_mark.index else node.end_mark.index
        return len(self._text[: node.end_mark.index].rstrip())

    def _is_on_one_line(self, key: yaml.Node, child: yaml.Node) -> bool:
        """Whether a key and its value, which must exist, are on one line, so that the next key can follow."""
        start, end = self._find_value(key, child)
        is_block = isinstance(child, yaml.ScalarNode) and child.style in ("|", ">")
        return start < end and not is_block and "\n" not in self._text[key.start_mark.index : end]

    def _find_line_end(self, position: int) -> int:
        return _LINE_END.search(self._text, position).start()  # type: ignore[union-attr] # the end of the text matches

    def _is_alias(self, key: yaml.Node, child: yaml.Node) -> bool:
        """Whether a value was written before its key."""
        return bool(child.start_mark.index < key.start_mark.index)

    def _splice(self, start: int, end: int, new: str) -> str:
        return f"{self._text[:start]}{new}{self._text[end:]}"

    def _refuse(self, reason: str) -> UsageError:
        return UsageError(f"`{self._path}` cannot be written into the file: {reason}; set it by hand")


def _get_name(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((child.value for key, child in node.value if getattr(key, "value", None) == "name"), None)


def _make_item(path: Sequence[str], value: str) -> str:
    """Return a new list entry with a name from the path and with the value at the rest of the path.

    >>> _make_item(["decode", "workers"], "3")
    '{name: decode, workers: 3}'
    """
    name, *rest = path
    return f"{{name: {name}, {_nest(rest, value).removeprefix('{')}"


def _nest(path: Sequence[str], value: str) -> str:
    """Return a value in the mappings that the rest of a path needs.

    >>> _nest(["batch", "size"], "8")
    '{batch: {size: 8}}'
    """
    for step in reversed(path):
        value = f"{{{step}: {value}}}"
    return value
