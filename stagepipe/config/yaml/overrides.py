"""Applies the overrides of the command line, such as `stages.decode.workers=8`. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagepipe.config.yaml.nodes import ListNode, MapNode, Node, ScalarNode, SourceLocation, is_null, iter_children
from stagepipe.config.yaml.parser import parse_value
from stagepipe.config.yaml.scalars import parse_scalar
from stagepipe.core import ConfigError, Problem, closest_match


class _OverridePathError(Exception):
    """The path of an override does not fit the config."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def apply_overrides(root: MapNode, overrides: Sequence[str], problems: list[Problem]) -> MapNode:
    """Return the config with each override applied. Append mistakes to `problems`.

    A path names a stage by its name or its index. An override may set a key that the file leaves out: validation finds
    unknown keys later. A variable must exist in the file, because no later step would notice a misspelt one.
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
        except _OverridePathError as error:
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
        return _with_location(parse_value(text), location)
    return ScalarNode(parse_scalar(text), location)


def _with_location(node: Node, location: SourceLocation) -> Node:
    if isinstance(node, MapNode):
        entries = {
            k: replace(e, key_location=location, node=_with_location(e.node, location)) for k, e in node.entries.items()
        }
        return MapNode(entries, location)
    if isinstance(node, ListNode):
        return ListNode(tuple(_with_location(item, location) for item in node.items), location)
    return replace(node, location=location)


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
        raise _OverridePathError(message, f"set `{'.'.join(parent_path)}` itself")
    entries = node.entries if isinstance(node, MapNode) else {}
    if step not in entries and (rest or parent_path[:1] == ("vars",)):
        _require_known_key(
            step, parent=node, parent_path=parent_path, optional_keys=_OPTIONAL_MAPPINGS.get(parent_path, frozenset())
        )
    old_value = entries[step].node if step in entries else MapNode({}, location)
    mapping = node if isinstance(node, MapNode) else MapNode({}, location)
    return mapping.with_entry(step, _set_at_path(old_value, rest, value, location, (*parent_path, step)), location)


_OPTIONAL_MAPPINGS: dict[tuple[str, ...], frozenset[str]] = {
    (): frozenset({"source", "sink", "transport", "report"}),
}
"""Mappings that an override may create. In a stage and in `with`, an override may create any."""


def _require_known_key(step: str, *, parent: Node, parent_path: tuple[str, ...], optional_keys: frozenset[str]) -> None:
    if step in optional_keys or (parent_path and parent_path[0] != "vars"):
        return
    known = [str(key) for key, _ in iter_children(parent)] + sorted(optional_keys)
    parent_label = f"`{'.'.join(parent_path)}`" if parent_path else "the config"
    closest = closest_match(step, known)
    hint = f"did you mean `{'.'.join((*parent_path, closest))}`?" if closest else f"known: {', '.join(known) or 'none'}"
    raise _OverridePathError(f"{parent_label} has no `{step}`", hint)


def _find_item_index(items: ListNode, step: str, parent_path: tuple[str, ...]) -> int:
    names = [item.get_text("name") if isinstance(item, MapNode) else None for item in items.items]
    if step in names:
        return names.index(step)
    if step.lstrip("-").isdecimal() and -len(names) <= int(step) < len(names):
        return int(step) % len(names)
    known = [name for name in names if name] or [f"0 to {len(names) - 1}"]
    closest = closest_match(step, known)
    hint = f"did you mean `{'.'.join((*parent_path, closest))}`?" if closest else f"known: {', '.join(known)}"
    raise _OverridePathError(f"`{'.'.join(parent_path)}` has no `{step}`", hint)
