"""Validates nodes with the pydantic models, and turns pydantic's errors into problems. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stagepipe.config.schema import (
    MODEL_BY_MAPPING_PATH,
    ConfigModel,
    InvalidValueError,
    PipelineModel,
    format_kind,
    format_value,
    make_boolean_hint,
)
from stagepipe.config.suggestions import UNKNOWN_KEY_HINTS, find_intended_key, make_key_hint, make_value_hint
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
_EXPECTED_TYPE_LABELS: Final = {
    "string_type": "a string",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
_PATH: Final = "pkg.module.name"
_EXAMPLE_BY_MAPPING_PATH: Final[dict[str, Any]] = {
    "source": {"uses": _PATH, "with": Placeholder("{...}")},
    "sink": {"uses": _PATH, "with": Placeholder("{...}")},
    "stages[]": {"name": "decode", "uses": _PATH},
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
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def validate(root: MapNode, problems: list[Problem]) -> ConfigModel | None:
    """Return the model of a config. If it is invalid, append its problems and return None."""
    try:
        return PipelineModel.model_validate(to_plain(drop_null_keys(root)))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        misspelt = {(e["loc"][:-1], _find_intended_key(e["loc"])) for e in errors if e["type"] == "extra_forbidden"}
        # Do not report a misspelt key as missing too.
        reported_errors = [e for e in errors if e["type"] != "missing" or (e["loc"][:-1], e["loc"][-1]) not in misspelt]
        problems += [_to_problem(root, details) for details in reported_errors]
        return None


def _find_intended_key(path: tuple[Any, ...]) -> str | None:
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


def _to_problem(root: MapNode, details: ErrorDetails) -> Problem:
    kind = details["type"]
    path = details["loc"]
    mapping_path = _to_mapping_path(path)
    if kind == "extra_forbidden":
        return _unknown_key_problem(root, path, mapping_path=_to_mapping_path(path[:-1]))
    if kind == "missing":
        return _missing_key_problem(root, path)
    path = _trim_to_existing(root, path)
    message, hint = _describe_error(details, mapping_path)
    location = find_location(root, path)
    label = _format_path(root, path, location)
    return location.make_problem(lambda syntax: f"`{label}`: {write_advice(message, syntax)}", hint)


def _missing_key_problem(root: MapNode, path: tuple[Any, ...]) -> Problem:
    key, parent_path = str(path[-1]), _to_mapping_path(path[:-1])

    def write_message(syntax: ConfigSyntax) -> str:
        label = _MAPPING_LABELS.get(parent_path, f"in `{parent_path}`") if parent_path else ""
        is_shown = label and syntax is not ConfigSyntax.BUILDER
        return f"`{syntax.format_key(key)}` is missing{f' {label}' if is_shown else ''}"

    def write_hint(syntax: ConfigSyntax) -> str:
        example = _EXAMPLE_BY_MISSING_KEY.get(key)
        return f"add `{syntax.format_setting(key, example)}`" if example else ""

    return find_location(root, path[:-1]).make_problem(write_message, write_hint)


def _unknown_key_problem(root: MapNode, path: tuple[Any, ...], mapping_path: str) -> Problem:
    """Make the problem of a key that its mapping does not have."""
    location = find_location(root, path, prefer_key=True)
    syntax = location.syntax
    labels = _BUILDER_LABELS if syntax is ConfigSyntax.BUILDER else _MAPPING_LABELS
    other_mappings = [
        (label, get_known_keys(other, syntax)) for other, label in labels.items() if other != mapping_path
    ]
    hint = _make_argument_hint(root, path, location) or make_key_hint(
        str(path[-1]), get_known_keys(mapping_path, syntax), mapping_path, other_mappings
    )
    if syntax is ConfigSyntax.BUILDER:
        return location.make_problem(f"unknown option `{path[-1]}`", hint)
    label = labels.get(mapping_path, f"in `{mapping_path.replace('[]', '')}`")
    return location.make_problem(f"unknown key `{path[-1]}` {label}", hint)


def _make_argument_hint(root: MapNode, path: tuple[Any, ...], location: SourceLocation) -> str:
    """Advise to write an argument of a target into `with`; "" unless the unknown key may be one."""
    parent, key, syntax = find_node(root, path[:-1]), str(path[-1]), location.syntax
    mapping_path = _to_mapping_path(path[:-1])
    if syntax is ConfigSyntax.BUILDER or mapping_path not in {"source", "sink"} or not isinstance(parent, MapNode):
        return ""
    intended = find_intended_key(key, get_known_keys(mapping_path))
    if (mapping_path, key) in UNKNOWN_KEY_HINTS or (intended is not None and parent.get(intended) is None):
        return ""
    override_path, _, value = location.file.removeprefix("override ").partition("=")
    head, _, last = override_path.rpartition(".")
    if location.file.startswith("override ") and last == key:
        return f"did you mean `{head}.with.{key}={value}`?"
    argument = {key: Placeholder("...")}
    return f"if it is an argument of the {mapping_path}: `{syntax.format_setting('with', argument)}`"


def _describe_error(details: ErrorDetails, mapping_path: str) -> tuple[AdviceText, AdviceText]:
    kind = details["type"]
    value = details["input"]
    context = details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, ValueError):
        return (cause.message, cause.hint) if isinstance(cause, InvalidValueError) else (str(cause), "")
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        listed = ", ".join(f"`{choice}`" for choice in choices)
        return partial(_write_expected, f"one of {listed}", value), make_value_hint(value, choices)
    expected = partial(_write_expected, _EXPECTED_TYPE_LABELS.get(kind, details["msg"]), value)
    if kind == "bool_type" and (hint := make_boolean_hint(value)):
        return expected, hint
    if kind == "string_type" and isinstance(value, int | float):
        return expected, "quote it"
    return expected, partial(_write_example, mapping_path)


def _write_expected(expected: str, value: Any, syntax: ConfigSyntax) -> str:
    return f"expected {format_kind(expected, syntax)}, found {format_value(value, syntax)}"


def _write_example(mapping_path: str, syntax: ConfigSyntax) -> str:
    if mapping_path == "stages":
        stage = syntax.format_value(_EXAMPLE_BY_MAPPING_PATH["stages[]"])
        return f"write `- {stage}` lines under it" if syntax is ConfigSyntax.YAML else f"write [{stage}]"
    example = _EXAMPLE_BY_MAPPING_PATH.get(mapping_path)
    return f"write {syntax.format_value(example)}" if example else ""


def _to_mapping_path(path: tuple[Any, ...]) -> str:
    """`("stages", 3, "batch")` -> `stages[].batch`."""
    parts = ["[]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).lstrip(".")


def _trim_to_existing(root: MapNode, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cut the path where the config ends: pydantic appends steps of its own, such as the members of a union."""
    missing_end = next((end for end in range(1, len(path) + 1) if find_node(root, path[:end]) is None), len(path) + 1)
    return path[: missing_end - 1]


def _format_path(root: MapNode, path: tuple[Any, ...], location: SourceLocation) -> str:
    """Return a path such as `stages.decode.workers`: stages by name, or by index if they have none.

    For the builder it is the option alone, because the call is known, and in a dict the path inside its stage.
    """
    if location.syntax is ConfigSyntax.BUILDER and len(path) > 1:
        return location.syntax.format_key(str(path[0 if path[-1] == "uses" else -1]))
    if location.stage:
        return ".".join(map(str, path[2:]))
    parts = []
    for index, step in enumerate(path):
        stage = find_node(root, path[: index + 1]) if isinstance(step, int) else None
        parts.append((stage.get_text("name") if isinstance(stage, MapNode) else None) or str(step))
    return ".".join(parts)
