"""Validates nodes, and turns the mistakes in them into problems: each with its place, and what to write instead. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from stagepipe.config.schema import (
    MODEL_BY_MAPPING_PATH,
    ConfigPath,
    InvalidValueError,
    Mistake,
    MistakeKind,
    check_pipeline,
    format_kind,
    format_value,
)
from stagepipe.config.suggestions import UNKNOWN_KEY_HINTS, find_intended_key, make_key_hint
from stagepipe.config.yaml import (
    ListNode,
    MapEntry,
    MapNode,
    Node,
    SourceLocation,
    find_location,
    find_node,
    is_null,
    to_plain,
)
from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, Problem, write_advice
from stagepipe.spec import iter_options

_MAPPING_LABELS: Final = {
    "": "at the top level",
    "stages[]": "in an entry of `stages`",
    "transport": "in `transport`",
    "report": "in `report`",
    "source": "in `source`",
}
_BUILDER_LABELS: Final = {"": "in `.with_options(...)`", "stages[]": "in the call of a stage"}
_EXPECTED_KINDS: Final = {MistakeKind.NO_MAPPING: "a mapping", MistakeKind.NO_LIST: "a list"}
_PATH: Final = "pkg.module.name"
_EXAMPLE_BY_MAPPING_PATH: Final[dict[str, Any]] = {
    "source": {"uses": _PATH, "with": Placeholder("{...}")},
    "sink": {"uses": _PATH, "with": Placeholder("{...}")},
    "sink[]": {"uses": _PATH, "with": Placeholder("{...}")},
    "stages[]": {"name": "decode", "uses": _PATH},
    "source.batch": {"size": 32},
    "stages[].batch": {"size": 32},
    "transport": {"mode": "auto"},
    "report": {"json": "FILE"},
}
_EXAMPLE_BY_MISSING_KEY: Final[dict[str, Any]] = {
    "name": "NAME",
    "source": {"uses": "stagepipe.sources.files", "with": {"glob": Placeholder("...")}},
    "uses": _PATH,
    "size": 32,
}


def get_known_keys(mapping_path: str, syntax: ConfigSyntax = ConfigSyntax.YAML) -> frozenset[str]:
    """Return the keys of a mapping. `mapping_path` is "" for the top level, "stages[]" for a stage.

    For the builder, they are the options that its methods take.
    """
    model = MODEL_BY_MAPPING_PATH[mapping_path]
    if syntax is ConfigSyntax.BUILDER:
        return frozenset(key.key for key in iter_options(model.spec_type))
    return frozenset(model.keys)


def validate(root: MapNode, problems: list[Problem]) -> dict[str, Any] | None:
    """Return the fields of the spec that a config sets. If it is invalid, append its problems and return None."""
    values, mistakes = check_pipeline(to_plain(drop_null_keys(root)))
    misspelt = {
        (mistake.path[:-1], _find_intended_key(mistake.path))
        for mistake in mistakes
        if mistake.kind is MistakeKind.UNKNOWN_KEY
    }
    # Do not report a misspelt key as missing too.
    problems += [
        _to_problem(root, mistake)
        for mistake in mistakes
        if mistake.kind is not MistakeKind.MISSING_KEY or (mistake.path[:-1], mistake.path[-1]) not in misspelt
    ]
    return None if mistakes else values


def _find_intended_key(path: ConfigPath) -> str | None:
    return find_intended_key(str(path[-1]), get_known_keys(_to_mapping_path(path[:-1])))


def drop_null_keys(node: Node, mapping_path: str = "") -> Node:
    """Return the config without its null keys; null means the same as leaving the key out."""
    if isinstance(node, ListNode):
        items = tuple(drop_null_keys(item, f"{mapping_path}[]") for item in node.items)
        return ListNode(items, node.location)
    if not isinstance(node, MapNode) or mapping_path not in MODEL_BY_MAPPING_PATH:
        return node
    entries = {key: e for key, e in node.entries.items() if not is_null(e.node)}
    remaining_entries = {
        key: MapEntry(e.key_location, drop_null_keys(e.node, f"{mapping_path}.{key}".lstrip(".")))
        for key, e in entries.items()
    }
    return MapNode(remaining_entries, node.location)


def _to_problem(root: MapNode, mistake: Mistake) -> Problem:
    path = mistake.path
    if mistake.kind is MistakeKind.UNKNOWN_KEY:
        return _unknown_key_problem(root, path, mapping_path=_to_mapping_path(path[:-1]))
    if mistake.kind is MistakeKind.MISSING_KEY:
        return _missing_key_problem(root, path)
    message, hint = _describe_bad_value(mistake)
    is_key = isinstance(mistake.cause, InvalidValueError) and mistake.cause.is_key
    location = find_location(root, path, prefer_key=is_key)
    label = _format_path(root, path, location)
    return location.make_problem(lambda syntax: f"`{label}`: {write_advice(message, syntax)}", hint)


def _missing_key_problem(root: MapNode, path: ConfigPath) -> Problem:
    key, parent_path = str(path[-1]), _to_mapping_path(path[:-1])
    stage = find_node(root, path[:-1])
    if (
        (parent_path, key) == ("stages[]", "uses")
        and isinstance(stage, MapNode)
        and stage.get_text("name") == "dataset"
    ):
        settings = {name: to_plain(entry.node) for name, entry in stage.entries.items() if name != "name"}
        message = "the stage `dataset` has no `uses`: what reads the source's items is set on the source itself"
        hint = f"remove the stage, and write its keys into `source`: {stage.location.syntax.format_value(settings)}"
        return stage.location.make_problem(message, hint if settings else "remove the stage")

    def write_message(syntax: ConfigSyntax) -> str:
        label = _MAPPING_LABELS.get(parent_path, f"in `{parent_path}`") if parent_path else ""
        is_shown = label and syntax is not ConfigSyntax.BUILDER
        return f"`{syntax.format_key(key)}` is missing{f' {label}' if is_shown else ''}"

    def write_hint(syntax: ConfigSyntax) -> str:
        example = _EXAMPLE_BY_MISSING_KEY.get(key)
        return f"add `{syntax.format_setting(key, example)}`" if example else ""

    return find_location(root, path[:-1]).make_problem(write_message, write_hint)


def check_option_names(root: MapNode, path: ConfigPath, parameters: Iterable[str]) -> list[Problem]:
    """Return a problem for each option of a builder's call that there is not. `parameters` are the method's own."""
    mapping_path = _to_mapping_path(path)
    node = find_node(root, path)
    keys = node.entries if isinstance(node, MapNode) else ()
    unknown = [key for key in keys if key not in get_known_keys(mapping_path)]
    return [_unknown_key_problem(root, (*path, key), mapping_path, parameters) for key in unknown]


def _unknown_key_problem(root: MapNode, path: ConfigPath, mapping_path: str, parameters: Iterable[str] = ()) -> Problem:
    """Make the problem of a key that its mapping does not have."""
    location = find_location(root, path, prefer_key=True)
    syntax = location.syntax
    labels = _BUILDER_LABELS if syntax is ConfigSyntax.BUILDER else _MAPPING_LABELS
    other_mappings = [
        (label, get_known_keys(other, syntax)) for other, label in labels.items() if other != mapping_path
    ]
    intended_parameter = find_intended_key(str(path[-1]), parameters)
    hint: AdviceText = f"did you mean `{intended_parameter}`?" if intended_parameter else ""
    hint = hint or _make_argument_hint(root, path, location)
    hint = hint or make_key_hint(
        str(path[-1]), {*get_known_keys(mapping_path, syntax), *parameters}, mapping_path, other_mappings
    )
    if syntax is ConfigSyntax.BUILDER:
        return location.make_problem(f"unknown option `{path[-1]}`", hint)
    key = path[-1] if isinstance(path[-1], str) else format_value(path[-1], syntax)
    label = labels.get(mapping_path, f"in `{mapping_path.replace('[]', '')}`")
    return location.make_problem(f"unknown key `{key}` {label}", hint)


def _make_argument_hint(root: MapNode, path: ConfigPath, location: SourceLocation) -> str:
    """Advise to write an argument of a target into `with`; "" unless the unknown key may be one."""
    parent, key, syntax = find_node(root, path[:-1]), str(path[-1]), location.syntax
    mapping_path = _to_mapping_path(path[:-1])
    if syntax is ConfigSyntax.BUILDER or mapping_path not in {"source", "sink", "sink[]"}:
        return ""
    if not isinstance(parent, MapNode) or not isinstance(path[-1], str):
        return ""
    intended = find_intended_key(key, get_known_keys(mapping_path))
    if (mapping_path, key) in UNKNOWN_KEY_HINTS or (intended is not None and parent.get(intended) is None):
        return ""
    override_path, _, value = location.file.removeprefix("override ").partition("=")
    head, _, last = override_path.rpartition(".")
    if location.file.startswith("override ") and last == key:
        return f"did you mean `{head}.with.{key}={value}`?"
    argument = {key: Placeholder("...")}
    return f"if it is an argument of the {mapping_path.removesuffix('[]')}: `{syntax.format_setting('with', argument)}`"


def _describe_bad_value(mistake: Mistake) -> tuple[AdviceText, AdviceText]:
    if isinstance(mistake.cause, InvalidValueError):
        return mistake.cause.message, mistake.cause.hint
    if mistake.cause is not None:
        return str(mistake.cause), ""
    expected = partial(_write_expected, _EXPECTED_KINDS[mistake.kind], mistake.value)
    return expected, partial(_write_example, _to_mapping_path(mistake.path))


def _write_expected(expected: str, value: Any, syntax: ConfigSyntax) -> str:
    return f"expected {format_kind(expected, syntax)}, found {format_value(value, syntax)}"


def _write_example(mapping_path: str, syntax: ConfigSyntax) -> str:
    if mapping_path == "stages":
        stage = syntax.format_value(_EXAMPLE_BY_MAPPING_PATH["stages[]"])
        return f"write `- {stage}` lines under it" if syntax is ConfigSyntax.YAML else f"write [{stage}]"
    example = _EXAMPLE_BY_MAPPING_PATH.get(mapping_path)
    return f"write {syntax.format_value(example)}" if example else ""


def _to_mapping_path(path: ConfigPath) -> str:
    """`("stages", 3, "batch")` -> `stages[].batch`."""
    parts = ["[]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).lstrip(".")


def _format_path(root: MapNode, path: ConfigPath, location: SourceLocation) -> str:
    """Return a path such as `stages.decode.workers`: stages by name, or by index if they have none.

    For the builder it is the option alone, because the call is known, and in a dict the path inside its stage.
    """
    if location.syntax is ConfigSyntax.BUILDER and path[2:3] == ("when",):
        return ".".join(map(str, path[2:]))
    if location.syntax is ConfigSyntax.BUILDER and len(path) > 1:
        return location.syntax.format_key(str(path[0 if path[-1] == "uses" else -1]))
    if location.stage:
        return ".".join(map(str, path[2:]))
    parts = []
    for index, step in enumerate(path):
        stage = find_node(root, path[: index + 1]) if isinstance(step, int) else None
        parts.append((stage.get_text("name") if isinstance(stage, MapNode) else None) or str(step))
    return ".".join(parts)
