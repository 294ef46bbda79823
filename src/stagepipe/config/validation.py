"""Values with places -> models, and what pydantic finds wrong in our words at the right place. Pure."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stagepipe.config import models
from stagepipe.config.fields import Mistake, shown
from stagepipe.config.nodes import Entry, List, Map, Node, find, is_null, place_of, plain
from stagepipe.config.words import key_mend, value_mend
from stagepipe.core import Problem

_MODELS: Final[dict[str, type[BaseModel]]] = {
    "": models.PipelineModel,
    "source": models.SourceModel,
    "sink": models.TargetModel,
    "stages[]": models.StageModel,
    "stages[].batch": models.BatchModel,
    "transport": models.TransportModel,
    "report": models.ReportModel,
}
"""The mappings of a config whose keys are fixed."""

_PLACES: Final = {
    "": "the top of the config",
    "stages[]": "an entry of `stages`",
    "transport": "`transport`",
    "report": "`report`",
    "source": "`source`",
}
_EXPECTED: Final = {
    "string_type": "a text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
_SHAPES: Final = {
    "source": "write {uses: pkg.module.name, with: {...}}",
    "sink": "write {uses: pkg.module.name, with: {...}}",
    "stages": "write `- {name: decode, uses: pkg.module.name}` lines under it",
    "stages[]": "write {name: decode, uses: pkg.module.name}",
    "stages[].batch": "write {size: 32}",
    "transport": "write {mode: auto}",
    "report": "write {json: FILE}",
}
_MISSING: Final = {
    "name": "add `name: WORD`",
    "source": "add `source: {uses: stagepipe.sources.files, with: {glob: ...}}`",
    "uses": "add `uses: pkg.module.name`",
    "size": "add `size: 32`",
}


def keys_of(where: str) -> frozenset[str]:
    """The keys that one of a config's mappings takes; `where` is "" for the top, "stages[]" for a stage."""
    return frozenset(field.alias or name for name, field in _MODELS[where].model_fields.items())


def validate(root: Map, problems: list[Problem]) -> models.PipelineModel | None:
    """The model of a config; None, and its mistakes in `problems`, where it is not one."""
    try:
        return models.PipelineModel.model_validate(plain(given(root)))
    except ValidationError as error:
        found = error.errors(include_url=False)
        unknown = {(e["loc"][:-1], _meant(e["loc"])) for e in found if e["type"] == "extra_forbidden"}
        # A key under another name is not missing as well.
        told = [e for e in found if e["type"] != "missing" or (e["loc"][:-1], e["loc"][-1]) not in unknown]
        problems += [_problem(root, details) for details in told]
        return None


def _meant(path: tuple[Any, ...]) -> str:
    """The key that an unknown one was meant to be."""
    where = _where(path[:-1])
    return key_mend(str(path[-1]), keys_of(where), where).removeprefix("did you mean `").removesuffix("`?")


def given(node: Node, where: str = "") -> Node:
    """The config without the keys that are null, which says the same as leaving them out."""
    if isinstance(node, List):
        items = tuple(given(item, f"{where}[]") for item in node.items)
        return List(items, node.place)
    if not isinstance(node, Map) or where not in _MODELS:
        return node
    entries = {key: e for key, e in node.entries.items() if not is_null(e.node)}
    inner = {k: Entry(e.key_place, given(e.node, f"{where}.{k}".lstrip("."))) for k, e in entries.items()}
    return Map(inner, node.place)


def _problem(root: Map, details: ErrorDetails) -> Problem:
    kind, path = details["type"], details["loc"]
    where = _where(path)
    if kind == "extra_forbidden":
        return unknown_key(root, path, where=_where(path[:-1]))
    if kind == "missing":
        inside = _where(path[:-1])
        of = f" in {_PLACES.get(inside, f'`{inside}`')}" if inside else ""
        return place_of(root, path[:-1]).problem(f"`{path[-1]}` is missing{of}", _MISSING.get(str(path[-1]), ""))
    path = _existing(root, path)
    message, mend = _words(details, where)
    return place_of(root, path).problem(f"`{_shown_path(root, path)}`: {message}", mend)


def unknown_key(root: Map, path: tuple[Any, ...], where: str) -> Problem:
    """The problem of a key that its mapping does not take."""
    elsewhere = [(words, keys_of(name)) for name, words in _PLACES.items() if name != where]
    mend = key_mend(str(path[-1]), keys_of(where), where, elsewhere)
    inside = _PLACES.get(where, f"`{where.replace('[]', '')}`")
    return place_of(root, path, key=True).problem(f"{inside} has no key `{path[-1]}`", mend)


def _words(details: ErrorDetails, where: str) -> tuple[str, str]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, Mistake):
        return cause.message, cause.mend
    if isinstance(cause, ValueError):
        return str(cause), ""
    if kind == "literal_error":
        choices = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        listed = ", ".join(f"`{choice}`" for choice in choices)
        return f"expected one of {listed}, found {shown(value)}", value_mend(value, choices)
    if kind == "bool_type" and str(value).casefold() in {"yes", "no", "on", "off", "y", "n"}:
        mend = f"write {'true' if str(value).casefold() in {'yes', 'on', 'y'} else 'false'}"
        return f"expected true or false, found {shown(value)}", mend
    expected = _EXPECTED.get(kind, details["msg"])
    mend = "quote it" if kind == "string_type" and isinstance(value, int | float) else _SHAPES.get(where, "")
    return f"expected {expected}, found {shown(value)}", mend


def _where(path: tuple[Any, ...]) -> str:
    """`("stages", 3, "batch")` -> `stages[].batch`."""
    words = ["[]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(words).lstrip(".")


def _existing(root: Map, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The path without what pydantic adds to it (the members of a union) and the file does not have."""
    at = next((end for end in range(1, len(path) + 1) if find(root, path[:end]) is None), len(path) + 1)
    return path[: at - 1]


def _shown_path(root: Map, path: tuple[Any, ...]) -> str:
    """`stages.decode.workers`: a stage by its name, where it has one."""
    words = []
    for at, step in enumerate(path):
        stage = find(root, path[: at + 1]) if isinstance(step, int) else None
        words.append((stage.text("name") if isinstance(stage, Map) else None) or str(step))
    return ".".join(words)
