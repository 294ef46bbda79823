"""The document of a config: YAML text -> nodes with locations, overrides, `${...}` references, and YAML again.

Knows no stages. A scalar, list or mapping is a node with a source location. Nodes are immutable, so an anchor or
variable that is used a hundred times stays one node, and merging shares nodes. PyYAML's safe loader parses the text;
unquoted scalars have the types of YAML 1.2. Reads files and the environment; runs in the process that loads the config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from stagepipe.core import ConfigError, Problem, closest_file_name, closest_match

MAX_VALUES: Final = 50_000
"""Maximum number of values after expanding aliases and variables: 100 times the size of a large pipeline."""

MAX_DEPTH: Final = 60
"""Maximum nesting depth; well within Python's recursion limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLocation:
    """The place where a node was written. `line` and `column` count from 1; both are 0 if the node is in no file.

    `call` is the text of the builder's call that made the node, `stage` the name of its stage.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str = ""
    call: str = ""
    stage: str = ""

    def make_problem(self, message: str, hint: str = "") -> Problem:
        """Make a problem at this location."""
        return Problem(
            message=message,
            hint=hint,
            file=self.file,
            line=self.line,
            column=self.column,
            source_line=self.source_line,
            call=self.call,
            stage=self.stage,
        )


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A string, number, boolean, null, or (from Python) any object."""

    value: Any
    location: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class MapEntry:
    """The location of a key, and its value."""

    key_location: SourceLocation
    node: Node


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping, in source order."""

    entries: Mapping[Any, MapEntry] = field(default_factory=dict)
    location: SourceLocation = SourceLocation()

    def get(self, key: Any) -> Node | None:
        """Return the value of `key`; None if it is missing or null, which have the same meaning."""
        entry = self.entries.get(key)
        return None if entry is None or is_null(entry.node) else entry.node

    def get_text(self, key: Any) -> str | None:
        """Return the value of `key` if it is a string, otherwise None."""
        node = self.get(key)
        return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else None

    def with_entry(self, key: Any, node: Node, key_location: SourceLocation | None = None) -> MapNode:
        """Return a copy with one value replaced or added."""
        old_entry = self.entries.get(key)
        location = key_location or (old_entry.key_location if old_entry else node.location)
        return replace(self, entries={**self.entries, key: MapEntry(location, node)})

    def without(self, *keys: Any) -> MapNode:
        """Return a copy without some keys."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key not in keys})


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list of nodes."""

    items: tuple[Node, ...] = ()
    location: SourceLocation = SourceLocation()


Node = ScalarNode | MapNode | ListNode


def is_null(node: Node) -> bool:
    """Return whether a node is null."""
    return isinstance(node, ScalarNode) and node.value is None


def to_plain(node: Node) -> Any:
    """Convert a node to dicts, lists and scalars, without locations."""
    if isinstance(node, MapNode):
        return {key: to_plain(entry.node) for key, entry in node.entries.items()}
    return [to_plain(item) for item in node.items] if isinstance(node, ListNode) else node.value


def from_plain(value: Any, location: SourceLocation = SourceLocation(), depth: int = 0) -> Node:
    """Convert a Python value to nodes at `location`. Raises ConfigError if it is nested deeper than MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise _make_depth_error(location, "does it contain itself?")
    if isinstance(value, Mapping):
        return MapNode(
            {key: MapEntry(location, _value_from_plain(key, item, location, depth + 1)) for key, item in value.items()},
            location,
        )
    if isinstance(value, list | tuple):
        return ListNode(tuple(from_plain(item, location, depth + 1) for item in value), location)
    return ScalarNode(value, location)


def _make_depth_error(location: SourceLocation, hint: str) -> ConfigError:
    return ConfigError([location.make_problem(f"nested more than {MAX_DEPTH} levels deep", hint)])


def _value_from_plain(key: Any, value: Any, location: SourceLocation, depth: int) -> Node:
    """Convert the value of a key. A list or tuple under `uses` is a source of items, so it stays unchanged."""
    is_data = key == "uses" and isinstance(value, list | tuple)
    return ScalarNode(value, location) if is_data else from_plain(value, location, depth)


def iter_children(node: Node) -> Iterator[tuple[Any, Node]]:
    """Yield the values of a mapping or list, with their keys or indices."""
    if isinstance(node, MapNode):
        yield from ((key, entry.node) for key, entry in node.entries.items())
    elif isinstance(node, ListNode):
        yield from enumerate(node.items)


def map_children(node: Node, function: Callable[[Any, Node], Node]) -> Node:
    """Return a mapping or list with `function(key, child)` in place of each child; return a scalar unchanged."""
    if isinstance(node, MapNode):
        entries = {key: MapEntry(e.key_location, function(key, e.node)) for key, e in node.entries.items()}
        return MapNode(entries, node.location)
    if isinstance(node, ListNode):
        return ListNode(tuple(function(index, item) for index, item in enumerate(node.items)), node.location)
    return node


def get_child(node: Node, key: Any) -> Node | None:
    """Return one value of a mapping or list, or None."""
    if isinstance(node, MapNode):
        return node.entries[key].node if key in node.entries else None
    if isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
        return node.items[key]
    return None


def find_node(node: Node, path: tuple[Any, ...]) -> Node | None:
    """Return the node at `path`, or None."""
    current: Node | None = node
    for step in path:
        current = None if current is None else get_child(current, step)
    return current


def find_location(node: Node, path: tuple[Any, ...], *, prefer_key: bool = False) -> SourceLocation:
    """Return the location of the node at `path`, or of its deepest ancestor that exists.

    With `prefer_key`, return the location of the node's key instead.
    """
    location = node.location
    for step in path:
        child = get_child(node, step)
        if child is None:
            break
        entry = node.entries[step] if isinstance(node, MapNode) else None
        location = entry.key_location if prefer_key and entry is not None else child.location
        node = child
    return location


def check_size(root: Node) -> None:
    """Raise ConfigError if a config is too large or too deep after expansion. Shared nodes are visited once."""
    sizes: dict[int, tuple[int, int]] = {}

    def measure(node: Node, level: int) -> tuple[int, int]:
        if level > MAX_DEPTH:
            raise _make_depth_error(node.location, "reduce the nesting")
        if id(node) not in sizes:
            child_sizes = [measure(child, level + 1) for _, child in iter_children(node)]
            sizes[id(node)] = (1 + sum(s for s, _ in child_sizes), 1 + max((d for _, d in child_sizes), default=0))
        size, depth = sizes[id(node)]
        if level + depth > MAX_DEPTH + 1:
            raise _make_depth_error(node.location, "reduce the nesting")
        if size > MAX_VALUES:
            message = f"more than {MAX_VALUES} values after expanding aliases and variables"
            raise ConfigError([node.location.make_problem(message, "repeat less, or move the data to a separate file")])
        return size, depth

    measure(root, 0)


_INTEGER_PATTERN: Final = re.compile(r"[-+]?[0-9]+")
_HEX_OR_OCTAL_PATTERN: Final = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT_PATTERN: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY_PATTERN: Final = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NULL_WORDS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE_WORDS: Final = frozenset({"true", "True", "TRUE"})
_FALSE_WORDS: Final = frozenset({"false", "False", "FALSE"})
_NAN_WORDS: Final = frozenset({".nan", ".NaN", ".NAN"})
_MAX_NUMBER_CHARS: Final = 400  # longer than any double, short enough that int() stays fast


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar.

    >>> [parse_scalar(text) for text in ("1e-4", "no", "12:30:45", "010", "true", "0x1F", "~")]
    [0.0001, 'no', '12:30:45', 10, True, 31, None]
    """
    if text in _NULL_WORDS:
        return None
    if text in _TRUE_WORDS or text in _FALSE_WORDS:
        return text in _TRUE_WORDS
    return _parse_number(text) if len(text) <= _MAX_NUMBER_CHARS else text


def _parse_number(text: str) -> Any:
    if _INTEGER_PATTERN.fullmatch(text):
        return int(text)
    if _HEX_OR_OCTAL_PATTERN.fullmatch(text):
        return int(text, 0)
    if _FLOAT_PATTERN.fullmatch(text):
        return float(text)
    if _INFINITY_PATTERN.fullmatch(text) or text in _NAN_WORDS:
        return float(text.replace(".", ""))
    return text


def format_scalar(value: Any) -> str:
    """Format a value so that `parse_scalar` reads it back; for a reference inside a longer string.

    >>> format_scalar(True), format_scalar(None), format_scalar(0.5), format_scalar("a")
    ('true', 'null', '0.5', 'a')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


MAX_FILE_BYTES: Final = 1 << 20
"""Maximum file size. A config has a few kilobytes; a file of a megabyte is probably not a config."""

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


def parse_value(text: str, file: str = "", place: SourceLocation | None = None) -> Node:
    """Parse a YAML text. Its nodes are located at `place`, or at their positions in `file`. Raises ConfigError."""
    lines = _LINE_BREAK_PATTERN.split(text)
    try:
        loader = NodeComposer(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, file, lines, text)]) from None
    if root is None:
        return ScalarNode(None, SourceLocation(file=file, line=1, column=1, source_line=lines[0]))
    builder = _NodeBuilder(file=file, lines=lines, place=place)
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
            "name a function by its import path: write it in a file next to the config, and set `uses: ./file.py:name`"
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
    place: SourceLocation | None
    problems: list[Problem] = field(default_factory=list)
    built_nodes: dict[int, Node] = field(default_factory=dict)
    open_node_ids: set[int] = field(default_factory=set)

    def build(self, node: yaml.Node) -> Node:
        if id(node) in self.built_nodes:
            return self.built_nodes[id(node)]
        location = self.place or _mark_to_location(self.file, self.lines, node.start_mark)
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
            key_location = self.place or _mark_to_location(self.file, self.lines, key_node.start_mark)
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
        """Return the entries that `<<` merges in. In a list of mappings, the first mapping with a key wins."""
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


class _Refusal(Exception):  # noqa: N818 - the places that know the location make a problem of it
    """The path of an override does not fit the config, or a reference is wrong. `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def _refuse_unknown(message: str, name: str, known: list[str], prefix: tuple[str, ...] = ()) -> _Refusal:
    """Return the refusal of a name that is not in `known`, with the closest known name."""
    closest = closest_match(name, known)
    meant = f"did you mean `{'.'.join((*prefix, closest))}`?" if closest else ""
    return _Refusal(message, meant or f"known: {', '.join(known) or 'none'}")


def apply_overrides(root: MapNode, overrides: Sequence[str], problems: list[Problem]) -> MapNode:
    """Return the config with each override applied. Append mistakes to `problems`.

    A path names a stage by its name or its index. An override may set a key that is missing in the file, because
    validation finds unknown keys later. A variable must exist in the file, because no later step would notice a
    misspelt one.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        location = SourceLocation(file=f"override {override}")
        if not equals or not all(path.split(".")):
            problems.append(
                location.make_problem(
                    "not a valid override", "write path.to.key=value, such as stages.decode.workers=8"
                )
            )
            continue
        try:
            changed = _set_at_path(root, path.split("."), parse_override_value(text, location), location, ())
        except _Refusal as error:
            is_source = path.startswith("stages.dataset.") and error.message.endswith(("`stages`", "`dataset`"))
            hint = f"did you mean `source{path.removeprefix('stages.dataset')}={text}`?" if is_source else error.hint
            problems.append(location.make_problem(error.message, hint))
        except ConfigError as error:
            problems += [location.make_problem(p.message, p.hint) for p in error.problems]
        else:
            root = changed if isinstance(changed, MapNode) else root
    return root


def parse_override_value(text: str, location: SourceLocation) -> Node:
    """Parse a value: as YAML if it starts with a bracket or a quote, otherwise as an unquoted scalar."""
    if text[:1] in {"[", "{", '"', "'"}:
        return parse_value(text, place=location)
    return ScalarNode(parse_scalar(text), location)


def _set_at_path(
    node: Node, path: list[str], value: Node, location: SourceLocation, parent_path: tuple[str, ...]
) -> Node:
    if not path:
        return value
    step, *rest = path
    if isinstance(node, ListNode):
        index = _find_item_index(node, step, parent_path)
        item = _set_at_path(node.items[index], rest, value, location, (*parent_path, step))
        return replace(node, items=(*node.items[:index], item, *node.items[index + 1 :]))
    if isinstance(node, ScalarNode) and not is_null(node):
        message = f"`{'.'.join(parent_path)}` is a single value and has no `{step}`"
        raise _Refusal(message, f"set `{'.'.join(parent_path)}` itself")
    entries = node.entries if isinstance(node, MapNode) else {}
    if step not in entries and (rest if not parent_path else parent_path[0] == "vars"):
        _require_known_key(step, node, parent_path)
    old_value = entries[step].node if step in entries else MapNode({}, location)
    mapping = node if isinstance(node, MapNode) else MapNode({}, location)
    return mapping.with_entry(step, _set_at_path(old_value, rest, value, location, (*parent_path, step)), location)


_OPTIONAL_MAPPINGS: Final = ("report", "sink", "source", "transport")
"""Mappings that an override may create. In a stage and in `with`, it may create any mapping."""


def _require_known_key(step: str, parent: Node, parent_path: tuple[str, ...]) -> None:
    optional = () if parent_path else _OPTIONAL_MAPPINGS
    if step in optional:
        return
    known = [*(str(key) for key, _ in iter_children(parent)), *optional]
    parent_label = f"`{'.'.join(parent_path)}`" if parent_path else "the config"
    raise _refuse_unknown(f"{parent_label} has no `{step}`", step, known, parent_path)


def _find_item_index(items: ListNode, step: str, parent_path: tuple[str, ...]) -> int:
    names = [item.get_text("name") if isinstance(item, MapNode) else None for item in items.items]
    if step in names:
        return names.index(step)
    if step.lstrip("-").isdecimal() and -len(names) <= int(step) < len(names):
        return int(step) % len(names)
    known = [name for name in names if name] or [f"0 to {len(names) - 1}"]
    raise _refuse_unknown(f"`{'.'.join(parent_path)}` has no `{step}`", step, known, parent_path)


MAX_TEXT_CHARS: Final = 1 << 16
"""Maximum length of a string after substitution. It stops variables that double each other."""


@dataclass(frozen=True)
class _Reference:
    """The content between `${` and `}`: text and nested references."""

    parts: tuple[str | _Reference, ...]


def _parse_parts(text: str, start: int = 0, depth: int = 0) -> tuple[tuple[str | _Reference, ...], int]:
    """Return the parts of a text from `start`, and their end: inside a reference, after its closing brace."""
    if depth > MAX_DEPTH:
        raise _Refusal(
            f"references nested more than {MAX_DEPTH} levels deep", "use a variable for the inner references"
        )
    parts: list[str | _Reference] = []
    plain_start = position = start
    while position < len(text):
        if text.startswith("$${", position):
            parts += [text[plain_start:position], "${"]
            position = plain_start = position + 3
        elif text.startswith("${", position):
            inner_parts, end = _parse_parts(text, position + 2, depth + 1)
            parts += [text[plain_start:position], _Reference(inner_parts)]
            position = plain_start = end
        elif depth and text[position] == "}":
            return (*parts, text[plain_start:position]), position + 1
        else:
            position += 1
    if depth:
        raise _Refusal("`${` without a closing `}`", "add the `}`, or write `$${` for a literal `${`")
    return tuple(part for part in (*parts, text[plain_start:]) if part != ""), position


@dataclass(kw_only=True)
class ReferenceResolver:
    """Resolves the references of one config. Collects mistakes in `problems`; a bad reference becomes null."""

    variables: Node | None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    problems: list[Problem] = field(default_factory=list)
    _open_variables: list[tuple[str, ...]] = field(default_factory=list)
    # The value contains the original node, which keeps the node alive, so that its id stays unique.
    _resolved_by_id: dict[int, tuple[Node, Node]] = field(default_factory=dict)

    def resolve(self, node: Node) -> Node:
        """Return the node with all references resolved."""
        if id(node) not in self._resolved_by_id:
            self._resolved_by_id[id(node)] = (node, self._resolve_uncached(node))
        return self._resolved_by_id[id(node)][1]

    def _resolve_uncached(self, node: Node) -> Node:
        if not isinstance(node, ScalarNode):
            return map_children(node, lambda _, child: self.resolve(child))
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            return replace(self._substitute_parts(_parse_parts(node.value)[0], node.location), location=node.location)
        except _Refusal as error:
            self.problems.append(node.location.make_problem(error.message, error.hint))
            return ScalarNode(None, node.location)

    def _substitute_parts(self, parts: tuple[str | _Reference, ...], location: SourceLocation) -> Node:
        if len(parts) == 1 and isinstance(parts[0], _Reference):
            return self._resolve_reference(parts[0], location)
        text = ""
        for part in parts:
            text += part if isinstance(part, str) else self._resolve_to_text(part, location)
            if len(text) > MAX_TEXT_CHARS:
                message = f"the string has more than {MAX_TEXT_CHARS} characters after substitution"
                raise _Refusal(message, "do variables double each other?")
        return ScalarNode(text, location)

    def _resolve_to_text(self, reference: _Reference, location: SourceLocation) -> str:
        node = self._resolve_reference(reference, location)
        if isinstance(node, ScalarNode):
            return format_scalar(node.value)
        kind = "a list" if isinstance(node, ListNode) else "a mapping"
        raise _Refusal(f"{kind} cannot be inserted into a string", "make the reference the whole value")

    def _resolve_reference(self, reference: _Reference, location: SourceLocation) -> Node:
        first_part = reference.parts[0] if reference.parts else ""
        if isinstance(first_part, str) and first_part.lstrip().startswith("env:"):
            return self._resolve_environment(reference, location)
        content = self._substitute_parts(tuple(p for p in reference.parts if p != ""), location)
        name = content.value.strip() if isinstance(content, ScalarNode) and isinstance(content.value, str) else ""
        if name.startswith("vars."):
            return self._resolve_variable(tuple(name.split(".")[1:]), name)
        raise _Refusal(f"unknown reference `${{{name}}}`", _reference_hint(name))

    def _resolve_environment(self, reference: _Reference, location: SourceLocation) -> Node:
        """Resolve `${env:NAME,default}`.

        The name ends at the first comma outside a nested reference. The default is resolved only if needed.
        """
        name_parts: list[str | _Reference] = []
        for index, part in enumerate(reference.parts):
            name_end, comma, default_start = part.partition(",") if isinstance(part, str) else ("", "", "")
            if not comma:
                name_parts.append(part)
                continue
            default: tuple[str | _Reference, ...] | None = (default_start.lstrip(), *reference.parts[index + 1 :])
            name_parts.append(name_end)
            break
        else:
            default = None
        name_node = self._substitute_parts(tuple(p for p in name_parts if p != ""), location)
        name = str(name_node.value if isinstance(name_node, ScalarNode) else "").strip().removeprefix("env:").strip()
        if name in self.environment:
            return ScalarNode(parse_scalar(self.environment[name]), location)
        if default is None:
            hint = f"set it, or add a default: `${{env:{name},default}}`"
            raise _Refusal(f"the environment variable `{name}` is not set", hint)
        value = self._substitute_parts(tuple(p for p in default if p != ""), location)
        if isinstance(value, ScalarNode) and isinstance(value.value, str):
            return ScalarNode(parse_scalar(value.value), location)
        return value

    def _resolve_variable(self, path: tuple[str, ...], name: str) -> Node:
        if path in self._open_variables:
            cycle_paths = (*self._open_variables[self._open_variables.index(path) :], path)
            cycle = " -> ".join(".".join(cycle_path) for cycle_path in cycle_paths)
            raise _Refusal(f"circular variables: {cycle}", "set one of them to a plain value")
        self._open_variables.append(path)
        try:
            return self._resolve_variable_path(path, name)
        finally:
            self._open_variables.pop()

    def _resolve_variable_path(self, path: tuple[str, ...], name: str) -> Node:
        node: Node = self.variables if isinstance(self.variables, MapNode) else MapNode()
        for step in path:
            node = self._resolve_if_scalar(node)
            child = get_child(node, int(step) if isinstance(node, ListNode) and step.isdecimal() else step)
            if child is None:
                raise _refuse_unknown(f"no variable `{name}`", step, [str(key) for key, _ in iter_children(node)])
            node = child
        problem_count = len(self.problems)
        resolved = self._resolve_uncached(node)  # the cache would hide a cycle
        if len(self.problems) > problem_count and isinstance(node, ScalarNode):
            problem = self.problems.pop()
            raise _Refusal(problem.message, problem.hint)
        return resolved

    def _resolve_if_scalar(self, node: Node) -> Node:
        """Resolve a variable that is itself a reference, so that a path can continue inside its value."""
        return self._resolve_uncached(node) if isinstance(node, ScalarNode) else node


def _reference_hint(name: str) -> str:
    if name.startswith("oc.env:"):
        return f"write `${{env:{name.removeprefix('oc.env:')}}}`"
    if name.startswith("env."):
        return f"write `${{env:{name.removeprefix('env.')}}}`"
    if name.isidentifier():
        return f"write `${{vars.{name}}}` or `${{env:{name}}}`, or `$${{` for a literal `${{`"
    return "write `${vars.name}`, `${env:NAME}` or `${env:NAME,default}`"


def resolve_environment(node: Node) -> Node:
    """Resolve the environment variables in `extends`; variables are not known yet. Raises ConfigError."""
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and "${vars." in node.value:
        problem = node.location.make_problem(
            "`extends` cannot use variables: a base may define them", "use ${env:NAME}"
        )
        raise ConfigError([problem])
    resolver = ReferenceResolver(variables=None)
    resolved = resolver.resolve(node)
    if resolver.problems:
        raise ConfigError(resolver.problems)
    return resolved


def write_yaml(value: Any) -> str:
    """Return the YAML of dicts, lists, strings, numbers, booleans and None.

    >>> print(write_yaml({"size": [224, 224], "text": "1e3"}), end="")
    size: [224, 224]
    text: "1e3"
    """
    return yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )


def write_flow_yaml(value: Any) -> str:
    """Return the YAML of a value in one line.

    >>> write_flow_yaml({"glob": "data/*.jpg", "sizes": [1, 2]})
    '{glob: data/*.jpg, sizes: [1, 2]}'
    """
    text = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return text.removesuffix("\n").removesuffix("\n...")  # the end that YAML puts after a single scalar


_UNICODE_LINE_BREAKS = frozenset("\x85\u2028\u2029")
"""YAML 1.1 reads them as the end of a line and folds them. They need an escape, which requires double quotes."""


class _PlainDumper(yaml.SafeDumper):
    """Quotes strings that `parse_scalar` would read as another type, and repeats a value instead of using an anchor."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = isinstance(parse_scalar(text), str) and _UNICODE_LINE_BREAKS.isdisjoint(text)
    style = None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_PlainDumper.add_representer(str, _represent_text)
