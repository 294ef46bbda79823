"""Parses YAML text to nodes with locations. PyYAML's safe loader parses; `scalars` decides the types. Reads files.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from stagepipe.config.yaml.nodes import (
    MAX_DEPTH,
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    check_size,
    is_null,
)
from stagepipe.config.yaml.scalars import parse_scalar
from stagepipe.core import ConfigError, Problem, closest_file_name

MAX_FILE_BYTES: Final = 1 << 20
"""Maximum file size. A config has a few kilobytes; a megabyte is probably the wrong file."""

_MAX_CHARS_AFTER_ERROR: Final = 120  # of the source line, counted from the column of the mistake
_PLAIN_TAG: Final = "plain"
_QUOTED_TAG: Final = "quoted"
_YAML_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_COLLECTION_TAGS: Final = {_PLAIN_TAG, f"{_YAML_TAG_PREFIX}map", f"{_YAML_TAG_PREFIX}seq"}
_LINE_BREAK_PATTERN: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_TYPES_BY_TAG: Final[dict[str, tuple[type, ...]]] = {
    f"{_YAML_TAG_PREFIX}int": (int,),
    f"{_YAML_TAG_PREFIX}float": (int, float),
    f"{_YAML_TAG_PREFIX}bool": (bool,),
    f"{_YAML_TAG_PREFIX}null": (type(None),),
}


def read_file(path: Path, display_path: str | None = None) -> MapNode:
    """Read the mapping in a file. Raises ConfigError with the YAML errors of the file."""
    display_path = display_path or str(path)
    location = SourceLocation(file=display_path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([location.make_problem("no such file", _similar_file_hint(path))]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            [location.make_problem(f"not valid UTF-8 (byte {error.start})", "save the file as UTF-8")]
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([location.make_problem(f"cannot read the file: {reason}")]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([location.make_problem(f"larger than {MAX_FILE_BYTES} bytes", "is this the config?")])
    return parse_mapping(text, display_path)


def _similar_file_hint(path: Path) -> str:
    folder = path.parent
    names = [p.name for pattern in ("*.yaml", "*.yml") for p in folder.glob(pattern)] if folder.is_dir() else []
    closest = closest_file_name(path.name, names)
    return f"did you mean `{folder / closest}`?" if closest else ""


def parse_mapping(text: str, file: str = "") -> MapNode:
    """Parse a YAML text that is a mapping. Raises ConfigError."""
    node = parse_value(text, file)
    if not isinstance(node, MapNode):
        found = "a list" if isinstance(node, ListNode) else "nothing" if is_null(node) else "a single value"
        raise ConfigError(
            [node.location.make_problem(f"a config must be a mapping, found {found}", "start with `name: ...`")]
        )
    return node


def parse_value(text: str, file: str = "") -> Node:
    """Parse a YAML text. Raises ConfigError."""
    lines = _LINE_BREAK_PATTERN.split(text)
    try:
        loader = NodeComposer(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, file, lines, text)]) from None
    if root is None:
        return ScalarNode(None, SourceLocation(file=file, line=1, column=1, source_line=lines[0]))
    builder = _NodeBuilder(file=file, lines=lines)
    node = builder.build(root)
    if builder.problems:
        raise ConfigError(builder.problems)
    check_size(node)
    return node


class NodeComposer(yaml.SafeLoader):
    """Builds PyYAML's node tree. Tags scalars as quoted or unquoted instead of guessing their types."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build a node, unless it is nested too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node without one."""
        del value
        return _QUOTED_TAG if kind is yaml.ScalarNode and not implicit[0] else _PLAIN_TAG


def _syntax_problem(error: yaml.YAMLError, file: str, lines: list[str], text: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        position = int(error.position)
        line = len(_LINE_BREAK_PATTERN.split(text[:position]))
        column = len(_LINE_BREAK_PATTERN.split(text[:position])[-1]) + 1
        code_point = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or " ")
        message = f"the character #x{code_point:04x} is not allowed in YAML"
        return SourceLocation(
            file=file, line=line, column=column, source_line=_replace_unprintable(lines[line - 1])
        ).make_problem(message, "remove or escape it")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    error_text = " ".join(str(part) for part in (getattr(error, "context", ""), getattr(error, "problem", "")) if part)
    if mark is None:
        return SourceLocation(file=file).make_problem(f"invalid YAML: {error_text or error}")
    location = _mark_to_location(file, lines, mark)
    text_before = location.source_line[: location.column - 1]
    if text_before.endswith("$") and location.source_line[location.column - 1 :].startswith("{"):
        location = SourceLocation(
            file=file, line=location.line, column=location.column - 1, source_line=location.source_line
        )
        return location.make_problem("unquoted `${...}` inside `{}` or `[]`", 'quote it: "${...}"')
    code = _PYTHON_CODE.search(location.source_line)
    if code is not None:
        location = replace(location, column=code.start() + 1)
        hint = (
            "a function is named by its import path: write it in a file next to the config, and `uses: ./file.py:name`"
        )
        return location.make_problem("Python code in a config", hint)
    if location.source_line.rstrip().endswith(".py:"):
        return location.make_problem(f"invalid YAML: {error_text}", "add the name of a function after `.py:`")
    return location.make_problem(f"invalid YAML: {error_text}", _syntax_hint(error_text))


_PYTHON_CODE: Final = re.compile(r"(?<=: )lambda\b|(?<=: )def \w+\(")
"""A function in place of its import path. Its colon makes the YAML invalid."""


def _syntax_hint(error_text: str) -> str:
    for error_fragment, hint in (
        ("cannot start any token", "indent with spaces, not tabs; quote a string that starts with @, ` or %"),
        ("mapping values are not allowed", "quote a string that contains `: `, and check the indentation"),
        ("expected <block end>", "check the indentation: entries of one mapping or list start in the same column"),
        ("undefined alias", "quote a string that starts with *"),
        ("nested more than", "reduce the nesting"),
        ("could not find expected ':'", "add `: ` after the key"),
        ("but got '<stream end>'", "close the bracket, brace or quote"),
        ("unexpected end of stream", "close the quote"),
        ("single document", "a config is one document; remove `---`"),
    ):
        if error_fragment in error_text:
            return hint
    return ""


def _replace_unprintable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)


def _mark_to_location(file: str, lines: list[str], mark: yaml.Mark) -> SourceLocation:
    line = lines[mark.line] if mark.line < len(lines) else ""
    return SourceLocation(
        file=file,
        line=mark.line + 1,
        column=mark.column + 1,
        source_line=_replace_unprintable(line[: mark.column + _MAX_CHARS_AFTER_ERROR]),
    )


@dataclass(kw_only=True)
class _NodeBuilder:
    """Converts PyYAML's nodes. All aliases of an anchor share one node."""

    file: str
    lines: list[str]
    problems: list[Problem] = field(default_factory=list)
    built_nodes: dict[int, Node] = field(default_factory=dict)
    open_node_ids: set[int] = field(default_factory=set)

    def build(self, node: yaml.Node) -> Node:
        if id(node) in self.built_nodes:
            return self.built_nodes[id(node)]
        location = _mark_to_location(self.file, self.lines, node.start_mark)
        if id(node) in self.open_node_ids:
            self.problems.append(location.make_problem("this anchor contains itself", "remove the alias inside it"))
            return ScalarNode(None, location)
        self.open_node_ids.add(id(node))
        self.built_nodes[id(node)] = built = self._build_uncached(node, location)
        self.open_node_ids.discard(id(node))
        return built

    def _build_uncached(self, node: yaml.Node, location: SourceLocation) -> Node:
        if isinstance(node, yaml.ScalarNode):
            return ScalarNode(self._build_scalar(node, location), location)
        if node.tag not in _COLLECTION_TAGS:
            self._report_tag(node, location)
        if isinstance(node, yaml.SequenceNode):
            return ListNode(tuple(self.build(item) for item in node.value), location)
        return self._build_mapping(node, location) if isinstance(node, yaml.MappingNode) else ScalarNode(None, location)

    def _build_scalar(self, node: yaml.ScalarNode, location: SourceLocation) -> Any:
        if node.tag in {_QUOTED_TAG, f"{_YAML_TAG_PREFIX}str"}:
            return node.value
        value = parse_scalar(node.value)
        if node.tag == _PLAIN_TAG:
            return value
        if node.tag not in _TYPES_BY_TAG:
            self._report_tag(node, location)
        elif not isinstance(value, _TYPES_BY_TAG[node.tag]):
            self.problems.append(
                location.make_problem(f"`{node.value}` does not match its tag `{_display_tag(node)}`", "remove the tag")
            )
        return value

    def _report_tag(self, node: yaml.Node, location: SourceLocation) -> None:
        message = f"the tag `{_display_tag(node)}` is not allowed"
        self.problems.append(location.make_problem(message, "remove it; a config holds only plain values"))

    def _build_mapping(self, node: yaml.MappingNode, location: SourceLocation) -> MapNode:
        explicit_entries: dict[Any, MapEntry] = {}
        merged_entries: dict[Any, MapEntry] = {}
        for key_node, value_node in node.value:
            key_location = _mark_to_location(self.file, self.lines, key_node.start_mark)
            if key_node.tag == _PLAIN_TAG and key_node.value == "<<":
                merged_entries = {**self._build_merge_key(value_node, key_location), **merged_entries}
                continue
            value = self.build(value_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(_complex_key_problem(key_location))
                continue
            key = self._build_scalar(key_node, key_location)
            if key in explicit_entries:
                first = explicit_entries[key].key_location
                message = f"duplicate key `{key}`; first used at {first.line}:{first.column}"
                self.problems.append(key_location.make_problem(message, "remove one of them"))
            else:
                explicit_entries[key] = MapEntry(key_location, value)
        inherited_entries = {key: entry for key, entry in merged_entries.items() if key not in explicit_entries}
        return MapNode({**inherited_entries, **explicit_entries}, location)

    def _build_merge_key(self, node: yaml.Node, location: SourceLocation) -> dict[Any, MapEntry]:
        """Return the entries that `<<` merges in. In a list of mappings, the first with a key wins."""
        entries: dict[Any, MapEntry] = {}
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            built = self.build(source)
            if isinstance(built, MapNode):
                entries = {**built.entries, **entries}
            else:
                self.problems.append(
                    location.make_problem("`<<` needs a mapping or a list of mappings", "write `<<: *anchor`")
                )
        return entries


def _display_tag(node: yaml.Node) -> str:
    return node.tag.replace(_YAML_TAG_PREFIX, "!!")


def _complex_key_problem(location: SourceLocation) -> Problem:
    if location.source_line[location.column - 1 :].startswith("{") and location.column > 1:
        return location.make_problem("a mapping cannot be a key", 'if it is a reference, quote it: "${...}"')
    return location.make_problem("a list or mapping cannot be a key", "write a string as the key")
