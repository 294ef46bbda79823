"""Arguments that a class builds itself, as it knows what they lack: a sampler its dataset. In workers and inline."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagepipe.core.targets import Late, TargetError, argument, call_once, is_called_once, resolve


def build_late(value: Any, **known: Any) -> Any:
    """What an argument named in `built_late` stands for; one that was given as an object is that object.

    A class is built and a function is called. Where its signature has one of the names in `known` that `with` leaves
    out, it is given that; so is every class nested directly in its `with`.

    >>> build_late(Late({"uses": "fractions.Fraction", "with": {"denominator": 4}}, None), numerator=3)
    Fraction(3, 4)

    Raises TargetError; what the class or function raises passes through, with a note that names it.
    """
    return _made(value.value, value.config_dir, known) if isinstance(value, Late) else value


def _made(value: Any, config_dir: Path | None, known: Mapping[str, Any]) -> Any:
    if not (isinstance(value, Mapping) and "uses" in value):
        return argument(value, config_dir)
    uses = value["uses"]
    target: Any = resolve(uses, config_dir) if isinstance(uses, str) else uses
    given = value.get("with") or {}
    arguments = {key: _inner(inner, config_dir, known) for key, inner in given.items()}
    if not (is_called_once(target) or inspect.isroutine(target) or isinstance(target, functools.partial)):
        if arguments:
            raise TargetError(f"`{uses}` is {type(target).__name__}, which takes no arguments; remove `with`")
        return target
    names = _parameters(target) - arguments.keys()
    return call_once(uses, target, {**arguments, **{name: known[name] for name in names & known.keys()}})


def _inner(value: Any, config_dir: Path | None, known: Mapping[str, Any]) -> Any:
    """A class inside (the sampler of a batch sampler) may lack the same; a function inside is handed over as it is."""
    if isinstance(value, Mapping) and "uses" in value:
        uses = value["uses"]
        if is_called_once(resolve(uses, config_dir) if isinstance(uses, str) else uses):
            return _made(value, config_dir, known)
    return argument(value, config_dir)


def _parameters(target: Any) -> set[str]:
    try:
        return set(inspect.signature(target).parameters)
    except (ValueError, TypeError):  # one in C that does not tell
        return set()
