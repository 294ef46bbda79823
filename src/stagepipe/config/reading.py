"""YAML text -> values with positions. PyYAML's safe loader reads; the meaning of scalars is ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from stagepipe.config.nodes import MAX_DEPTH, Entry, List, Map, Node, Place, Scalar, check_size
from stagepipe.config.scalars import parse_scalar
from stagepipe.core import ConfigError, Problem
from stagepipe.core.targets import nearest

MAX_FILE_BYTES: Final = 1 << 20
"""A config is some kilobytes; a file of a megabyte is something else, given by mistake."""

_SHOWN: Final = 120  # characters of the source line after the mistake
_PLAIN: Final = "plain"
_QUOTED: Final = "quoted"
_YAML: Final = "tag:yaml.org,2002:"
_COLLECTIONS: Final = {_PLAIN, f"{_YAML}map", f"{_YAML}seq"}
_LINES: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    f"{_YAML}int": (int,),
    f"{_YAML}float": (int, float),
    f"{_YAML}bool": (bool,),
    f"{_YAML}null": (type(None),),
}


def read_file(path: Path, shown: str | None = None) -> Map:
    """The mapping that a file holds. Raises ConfigError with all that is wrong with it as YAML."""
    shown = shown or str(path)
    place = Place(shown)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([place.problem("no such file", _similar(path))]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([place.problem(f"not UTF-8 text (byte {error.start})", "save the file as UTF-8")]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([place.problem(f"cannot be read: {reason}")]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([place.problem(f"larger than {MAX_FILE_BYTES} bytes", "is this the config?")])
    return read_text(text, shown)


def _similar(path: Path) -> str:
    folder = path.parent
    names = [p.name for pattern in ("*.yaml", "*.yml") for p in folder.glob(pattern)] if folder.is_dir() else []
    near = nearest(path.name, names)
    return f"did you mean `{folder / near}`?" if near else ""


def read_text(text: str, file: str = "") -> Map:
    """The mapping that a YAML text holds. Raises ConfigError."""
    node = read_value(text, file)
    if not isinstance(node, Map):
        found = "nothing" if isinstance(node, Scalar) and node.value is None else "something else"
        raise ConfigError([node.place.problem(f"a config is a mapping, found {found}", "begin with `name: ...`")])
    return node


def read_value(text: str, file: str = "") -> Node:
    """The value that a YAML text holds. Raises ConfigError."""
    lines = _LINES.split(text)
    try:
        loader = _Composer(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, file, lines, text)]) from None
    if root is None:
        return Scalar(None, Place(file, 1, 1, lines[0]))
    builder = _Builder(file, lines)
    node = builder.build(root)
    if builder.problems:
        raise ConfigError(builder.problems)
    check_size(node)
    return node


class _Composer(yaml.SafeLoader):
    """PyYAML up to its node tree; tells unquoted from quoted scalars instead of guessing types."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        del value
        return _QUOTED if kind is yaml.ScalarNode and not implicit[0] else _PLAIN


def _syntax_problem(error: yaml.YAMLError, file: str, lines: list[str], text: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        at = int(error.position)
        line = len(_LINES.split(text[:at]))
        column = len(_LINES.split(text[:at])[-1]) + 1
        found = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or " ")
        message = f"the character #x{found:04x} is not allowed in YAML"
        return Place(file, line, column, _printable(lines[line - 1])).problem(message, "remove or escape it")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = " ".join(str(part) for part in (getattr(error, "context", ""), getattr(error, "problem", "")) if part)
    if mark is None:
        return Place(file).problem(f"not YAML: {what or error}")
    place = _place(file, lines, mark)
    before = place.source_line[: place.column - 1]
    if before.endswith("$") and place.source_line[place.column - 1 :].startswith("{"):
        place = Place(file, place.line, place.column - 1, place.source_line)
        return place.problem("an unquoted `${...}` inside `{}` or `[]`", 'quote it: "${...}"')
    return place.problem(f"not YAML: {what}", _syntax_mend(what))


def _syntax_mend(what: str) -> str:
    for words, mend in (
        ("cannot start any token", "YAML is indented with spaces, and a text that begins with @ ` % is quoted"),
        ("mapping values are not allowed", "quote a text that holds `: `, and check the indentation"),
        ("expected <block end>", "check the indentation: entries of one mapping or list begin in one column"),
        ("undefined alias", "a text that begins with * is quoted"),
        ("nested more than", "make it flatter"),
        ("could not find expected ':'", "a key is followed by `: `"),
        ("but got '<stream end>'", "a bracket, brace or quote is not closed"),
        ("unexpected end of stream", "a quote is not closed"),
        ("single document", "a config is one document; remove `---`"),
    ):
        if words in what:
            return mend
    return ""


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)


def _place(file: str, lines: list[str], mark: yaml.Mark) -> Place:
    line = lines[mark.line] if mark.line < len(lines) else ""
    return Place(file, mark.line + 1, mark.column + 1, _printable(line[: mark.column + _SHOWN]))


@dataclass
class _Builder:
    """From PyYAML's nodes to ours. An alias is the same node twice, and stays one."""

    file: str
    lines: list[str]
    problems: list[Problem] = field(default_factory=list)
    done: dict[int, Node] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def build(self, node: yaml.Node) -> Node:
        if id(node) in self.done:
            return self.done[id(node)]
        place = _place(self.file, self.lines, node.start_mark)
        if id(node) in self.open:
            self.problems.append(place.problem("an anchor that contains itself", "a config has an end"))
            return Scalar(None, place)
        self.open.add(id(node))
        self.done[id(node)] = built = self._build(node, place)
        self.open.discard(id(node))
        return built

    def _build(self, node: yaml.Node, place: Place) -> Node:
        if isinstance(node, yaml.ScalarNode):
            return Scalar(self._scalar(node, place), place)
        if node.tag not in _COLLECTIONS:
            self._refuse_tag(node, place)
        if isinstance(node, yaml.SequenceNode):
            return List(tuple(self.build(item) for item in node.value), place)
        return self._mapping(node, place) if isinstance(node, yaml.MappingNode) else Scalar(None, place)

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        if node.tag in {_QUOTED, f"{_YAML}str"}:
            return node.value
        value = parse_scalar(node.value)
        if node.tag == _PLAIN:
            return value
        if node.tag not in _TYPES:
            self._refuse_tag(node, place)
        elif not isinstance(value, _TYPES[node.tag]):
            self.problems.append(place.problem(f"`{node.value}` is not what its tag says", "remove the tag"))
        return value

    def _refuse_tag(self, node: yaml.Node, place: Place) -> None:
        tag = node.tag.replace(_YAML, "!!")
        self.problems.append(place.problem(f"the tag `{tag}` is not allowed", "a config holds plain values; remove it"))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Map:
        own: dict[Any, Entry] = {}
        merged: dict[Any, Entry] = {}
        for key_node, value_node in node.value:
            key_place = _place(self.file, self.lines, key_node.start_mark)
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merged = {**self._merged(value_node, key_place), **merged}
                continue
            value = self.build(value_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(_complex_key(key_place))
                continue
            key = self._scalar(key_node, key_place)
            if key in own:
                first = own[key].key_place
                message = f"the key `{key}` is here a second time; the first is at {first.line}:{first.column}"
                self.problems.append(key_place.problem(message, "keep one of them"))
            else:
                own[key] = Entry(key_place, value)
        return Map({**{k: e for k, e in merged.items() if k not in own}, **own}, place)

    def _merged(self, node: yaml.Node, place: Place) -> dict[Any, Entry]:
        """The entries that `<<` brings in; of a list of mappings the first that has a key wins."""
        found: dict[Any, Entry] = {}
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            built = self.build(source)
            if isinstance(built, Map):
                found = {**built.entries, **found}
            else:
                self.problems.append(place.problem("`<<` takes a mapping or a list of mappings", "write `<<: *anchor`"))
        return found


def _complex_key(place: Place) -> Problem:
    if place.source_line[place.column - 1 :].startswith("{") and place.column > 1:
        return place.problem("a mapping used as a key", 'is it a variable? quote it: "${...}"')
    return place.problem("a list or mapping used as a key", "a key is a word")
