"""Validates nodes with the pydantic models, and turns pydantic's errors into problems. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stagepipe.config.schema import MODEL_BY_MAPPING_PATH, ConfigModel, InvalidValueError, PipelineModel, format_value
from stagepipe.config.suggestions import find_intended_key, make_key_hint, make_value_hint
from stagepipe.config.yaml import ListNode, MapEntry, MapNode, Node, find_location, find_node, is_null, to_plain
from stagepipe.core import Problem

_MAPPING_LABELS: Final = {
    "": "at the top level",
    "stages[]": "in an entry of `stages`",
    "transport": "in `transport`",
    "report": "in `report`",
    "source": "in `source`",
}
_EXPECTED_TYPE_LABELS: Final = {
    "string_type": "a string",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
_SHAPE_HINTS: Final = {
    "source": "write {uses: pkg.module.name, with: {...}}",
    "sink": "write {uses: pkg.module.name, with: {...}}",
    "stages": "write `- {name: decode, uses: pkg.module.name}` lines under it",
    "stages[]": "write {name: decode, uses: pkg.module.name}",
    "stages[].batch": "write {size: 32}",
    "transport": "write {mode: auto}",
    "report": "write {json: FILE}",
}
_MISSING_KEY_HINTS: Final = {
    "name": "add `name: NAME`",
    "source": "add `source: {uses: stagepipe.sources.files, with: {glob: ...}}`",
    "uses": "add `uses: pkg.module.name`",
    "size": "add `size: 32`",
}


def get_known_keys(mapping_path: str) -> frozenset[str]:
    """Return the keys of a mapping. `mapping_path` is "" for the top level, "stages[]" for a stage."""
    return frozenset(field.alias or name for name, field in MODEL_BY_MAPPING_PATH[mapping_path].model_fields.items())


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
        parent_path = _to_mapping_path(path[:-1])
        label = f" {_MAPPING_LABELS.get(parent_path, f'in `{parent_path}`')}" if parent_path else ""
        return find_location(root, path[:-1]).make_problem(
            f"`{path[-1]}` is missing{label}", _MISSING_KEY_HINTS.get(str(path[-1]), "")
        )
    path = _trim_to_existing(root, path)
    message, hint = _describe_error(details, mapping_path)
    return find_location(root, path).make_problem(f"`{_format_path(root, path)}`: {message}", hint)


def _unknown_key_problem(root: MapNode, path: tuple[Any, ...], mapping_path: str) -> Problem:
    """Make the problem of a key that its mapping does not have."""
    other_mappings = [
        (label, get_known_keys(other)) for other, label in _MAPPING_LABELS.items() if other != mapping_path
    ]
    hint = make_key_hint(str(path[-1]), get_known_keys(mapping_path), mapping_path, other_mappings)
    label = _MAPPING_LABELS.get(mapping_path, f"in `{mapping_path.replace('[]', '')}`")
    return find_location(root, path, prefer_key=True).make_problem(f"unknown key `{path[-1]}` {label}", hint)


def _describe_error(details: ErrorDetails, mapping_path: str) -> tuple[str, str]:
    kind = details["type"]
    value = details["input"]
    context = details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InvalidValueError):
        return cause.message, cause.hint
    if isinstance(cause, ValueError):
        return str(cause), ""
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        listed = ", ".join(f"`{choice}`" for choice in choices)
        return f"expected one of {listed}, found {format_value(value)}", make_value_hint(value, choices)
    if kind == "bool_type" and str(value).casefold() in {"yes", "no", "on", "off", "y", "n"}:
        hint = f"write {'true' if str(value).casefold() in {'yes', 'on', 'y'} else 'false'}"
        return f"expected true or false, found {format_value(value)}", hint
    expected = _EXPECTED_TYPE_LABELS.get(kind, details["msg"])
    hint = (
        "quote it" if kind == "string_type" and isinstance(value, int | float) else _SHAPE_HINTS.get(mapping_path, "")
    )
    return f"expected {expected}, found {format_value(value)}", hint


def _to_mapping_path(path: tuple[Any, ...]) -> str:
    """`("stages", 3, "batch")` -> `stages[].batch`."""
    parts = ["[]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).lstrip(".")


def _trim_to_existing(root: MapNode, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cut the path where the config ends: pydantic appends steps of its own, such as the members of a union."""
    missing_end = next((end for end in range(1, len(path) + 1) if find_node(root, path[:end]) is None), len(path) + 1)
    return path[: missing_end - 1]


def _format_path(root: MapNode, path: tuple[Any, ...]) -> str:
    """Return a path such as `stages.decode.workers`: stages by name, or by index if they have none."""
    parts = []
    for index, step in enumerate(path):
        stage = find_node(root, path[: index + 1]) if isinstance(step, int) else None
        parts.append((stage.get_text("name") if isinstance(stage, MapNode) else None) or str(step))
    return ".".join(parts)
