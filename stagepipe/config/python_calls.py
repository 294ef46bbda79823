"""Turns the calls of a Python builder into the nodes of a config. Each node's location is its call. Pure.

Runs in the process that builds the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from stagepipe.config.schema import ConfigPath
from stagepipe.config.validation import check_option_names
from stagepipe.config.yaml import ListNode, MapEntry, MapNode, Node, ScalarNode, SourceLocation, from_plain
from stagepipe.core import ConfigError, ConfigSyntax, Deferred

_ARGUMENTS_KEY: Final = "with"


@dataclass(frozen=True)
class PythonCall:
    """One call of a builder: its text for messages, and what it adds to the config.

    `section` is the key of the config that it adds to; "" is the top level. In `settings`, the values of `with` are the
    arguments themselves: text in them is not searched for references, and a tuple stays a tuple.
    """

    text: str
    section: Literal["", "source", "stages", "sink"]
    settings: Mapping[str, Any]


@runtime_checkable
class SupportsPythonCalls(Protocol):
    """An object that describes a pipeline by calls: the Python builder."""

    @property
    def python_calls(self) -> Sequence[PythonCall]:
        """The calls in order."""
        ...


def from_python_calls(calls: Sequence[PythonCall]) -> MapNode:
    """Return the config that the calls describe. A later top-level setting replaces an earlier one.

    >>> root = from_python_calls([PythonCall("from_source(range(3))", "source", {"uses": range(3)})])
    >>> root.get("source").location.call
    'from_source(range(3))'
    """
    entries: dict[str, MapEntry] = {}
    lists: dict[str, list[Node]] = {"stages": [], "sink": []}
    for call in calls:
        stage = str(call.settings.get("name", "")) if call.section else ""
        location = SourceLocation(call=call.text, stage=stage, syntax=ConfigSyntax.BUILDER)
        node = MapNode(
            {key: MapEntry(location, _to_setting_node(key, value, location)) for key, value in call.settings.items()},
            location,
        )
        if call.section in lists:
            lists[call.section].append(node)
        elif call.section:
            entries[call.section] = MapEntry(location, node)
        else:
            entries |= node.entries
    for section, nodes in lists.items():
        if nodes:
            is_single = section == "sink" and len(nodes) == 1
            entries[section] = MapEntry(SourceLocation(), nodes[0] if is_single else ListNode(tuple(nodes)))
    return MapNode(entries, SourceLocation(syntax=ConfigSyntax.BUILDER))


def check_call(call: PythonCall, parameters: Iterable[str] = ()) -> None:
    """Raise ConfigError if a call has options that there are not. `parameters` are what its method takes besides.

    >>> check_call(PythonCall(".map(len, worker=2)", "stages", {"name": "len", "uses": len, "worker": 2}))
    Traceback (most recent call last):
    ...
    stagepipe.core.errors.ConfigError: .map(len, worker=2), stage `len`: unknown option `worker`
        did you mean `workers`?
    """
    paths: dict[str, ConfigPath] = {"": (), "stages": ("stages", 0)}
    path = paths.get(call.section, (call.section,))
    problems = check_option_names(from_python_calls([call]), path, parameters)
    if problems:
        raise ConfigError(problems)


def _to_setting_node(key: str, value: Any, location: SourceLocation) -> Node:
    if key == "uses":
        return ScalarNode(value, location)
    if key == _ARGUMENTS_KEY:
        return _to_map_node({name: _to_argument_node(inner, location) for name, inner in value.items()}, location)
    if isinstance(value, Deferred):  # the predicate of `when`
        return _to_argument_node(value, location)
    return from_plain(_escape_references(value), location)


def _to_argument_node(value: Any, location: SourceLocation) -> Node:
    """Return the node of an argument. Only what contains a `Deferred` is structure; all other values stay whole."""
    if isinstance(value, Deferred):
        target = {"uses": ScalarNode(value.target, location)}
        arguments = _to_setting_node(_ARGUMENTS_KEY, value.arguments, location)
        return _to_map_node({**target, _ARGUMENTS_KEY: arguments} if value.arguments else target, location)
    if type(value) is list and _contains_deferred(value):
        return ListNode(tuple(_to_argument_node(inner, location) for inner in value), location)
    if type(value) is dict and _contains_deferred(value):
        return _to_map_node({key: _to_argument_node(inner, location) for key, inner in value.items()}, location)
    return ScalarNode(_escape_references(value) if isinstance(value, str) else _replace_deferred(value), location)


def _to_map_node(nodes: Mapping[Any, Node], location: SourceLocation) -> MapNode:
    return MapNode({key: MapEntry(location, node) for key, node in nodes.items()}, location)


def _contains_deferred(value: Any) -> bool:
    if type(value) in {list, tuple}:
        return any(map(_contains_deferred, value))
    if type(value) is dict:
        return any(map(_contains_deferred, value.values()))
    return isinstance(value, Deferred)


def _replace_deferred(value: Any) -> Any:
    """Return a tuple with each `Deferred` in it replaced by the mapping that workers build; other values unchanged."""
    if not _contains_deferred(value):
        return value
    if isinstance(value, Deferred):
        return {"uses": value.target, _ARGUMENTS_KEY: {k: _replace_deferred(v) for k, v in value.arguments.items()}}
    if type(value) is dict:
        return {key: _replace_deferred(inner) for key, inner in value.items()}
    return type(value)(map(_replace_deferred, value))


def _escape_references(value: Any) -> Any:
    """Return the value with `${` in its strings written as in a config, where it would be a reference."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if type(value) is dict:
        return {key: _escape_references(inner) for key, inner in value.items()}
    return [_escape_references(inner) for inner in value] if type(value) in {list, tuple} else value
