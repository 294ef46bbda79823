"""Overrides of the command line: `stages.decode.workers=8 vars.size=128`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagepipe.config.nodes import List, Map, Node, Place, Scalar, children, is_null
from stagepipe.config.reading import read_value
from stagepipe.config.scalars import parse_scalar
from stagepipe.core import ConfigError, Problem
from stagepipe.core.targets import nearest


class _NoSuchPathError(Exception):
    def __init__(self, message: str, mend: str) -> None:
        super().__init__(message)
        self.message, self.mend = message, mend


def apply(root: Map, overrides: Sequence[str], problems: list[Problem]) -> Map:
    """The config with each override laid over it; mistakes are added to `problems`.

    A stage is addressed by its name or its index. A key that the file leaves out may be set; whether it exists at all
    is found out with the rest of the config, but a variable must be there: nothing else would notice a misspelt one.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        place = Place(f"override {override}")
        if not equals or not all(path.split(".")):
            problems.append(
                place.problem("not an override", "write path.to.key=value, such as stages.decode.workers=8")
            )
            continue
        try:
            changed = _set(root, path.split("."), _value(text, place), place, ())
        except _NoSuchPathError as error:
            problems.append(place.problem(error.message, error.mend))
        except ConfigError as error:
            problems += [place.problem(p.message, p.mend) for p in error.problems]
        else:
            root = changed if isinstance(changed, Map) else root
    return root


def _value(text: str, place: Place) -> Node:
    """A word by the rules of a config's words; what begins with a bracket or a quote is YAML."""
    if text[:1] in {"[", "{", '"', "'"}:
        return _placed(read_value(text), place)
    return Scalar(parse_scalar(text), place)


def _placed(node: Node, place: Place) -> Node:
    if isinstance(node, Map):
        entries = {k: replace(e, key_place=place, node=_placed(e.node, place)) for k, e in node.entries.items()}
        return Map(entries, place)
    if isinstance(node, List):
        return List(tuple(_placed(item, place) for item in node.items), place)
    return replace(node, place=place)


def _set(node: Node, path: list[str], value: Node, place: Place, above: tuple[str, ...]) -> Node:
    if not path:
        return value
    step, *rest = path
    if isinstance(node, List):
        at = _index(node, step, above)
        inner = _set(node.items[at], rest, value, place, (*above, step))
        return replace(node, items=(*node.items[:at], inner, *node.items[at + 1 :]))
    if isinstance(node, Scalar) and not is_null(node):
        message = f"`{'.'.join(above)}` is a value, it has no `{step}` inside"
        raise _NoSuchPathError(message, f"set `{'.'.join(above)}` itself")
    entries = node.entries if isinstance(node, Map) else {}
    if step not in entries and (rest or above[:1] == ("vars",)):
        _check_known(step, entries_of=node, above=above, optional=_OPTIONAL.get(above, frozenset()))
    old = entries[step].node if step in entries else Map({}, place)
    base = node if isinstance(node, Map) else Map({}, place)
    return base.with_entry(step, _set(old, rest, value, place, (*above, step)), place)


_OPTIONAL: dict[tuple[str, ...], frozenset[str]] = {
    (): frozenset({"source", "sink", "transport", "report"}),
}
"""Mappings that a file may leave out and an override may begin. (In a stage and in `with`, any.)"""


def _check_known(step: str, *, entries_of: Node, above: tuple[str, ...], optional: frozenset[str]) -> None:
    if step in optional or (above and above[0] != "vars"):
        return
    known = [str(key) for key, _ in children(entries_of)] + sorted(optional)
    where = f"`{'.'.join(above)}`" if above else "the config"
    near = nearest(step, known)
    mend = f"did you mean `{'.'.join((*above, near))}`?" if near else f"known: {', '.join(known) or 'none'}"
    raise _NoSuchPathError(f"{where} has no `{step}`", mend)


def _index(items: List, step: str, above: tuple[str, ...]) -> int:
    names = [item.text("name") if isinstance(item, Map) else None for item in items.items]
    if step in names:
        return names.index(step)
    if step.lstrip("-").isdecimal() and -len(names) <= int(step) < len(names):
        return int(step) % len(names)
    known = [name for name in names if name] or [f"0 to {len(names) - 1}"]
    near = nearest(step, known)
    mend = f"did you mean `{'.'.join((*above, near))}`?" if near else f"known: {', '.join(known)}"
    raise _NoSuchPathError(f"`{'.'.join(above)}` has no `{step}`", mend)
