"""Checks what `uses` names and what `with` gives, without importing: in the process that reads the config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Final

from stagepipe.config.checks import ORDER_POINTS, built_in, stages_of
from stagepipe.config.datasets import is_dataset_source
from stagepipe.config.nodes import Entry, List, Map, Node, Place, Scalar, children
from stagepipe.config.static import (
    Absent,
    BrokenSourceError,
    Callee,
    Definition,
    Kind,
    Lookup,
    Module,
    Modules,
    callee_of,
    callee_of_object,
)
from stagepipe.config.static.objects import Known, cheap_object
from stagepipe.config.words import key_mend
from stagepipe.core import Problem
from stagepipe.core.targets import file_path, is_file, is_running_script, is_there, nearest, split_path

_BY_POSITION: Final = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_OTHERS_USES: Final = ("_target_", "class_path")  # Hydra's and jsonargparse's words for `uses`
_SHOWN_NAMES: Final = 8
_GIVEN_TO_SAMPLERS: Final = frozenset({"dataset", "data_source"})  # what torch's samplers call it


class Role(Enum):
    """What a target is for: it decides who gives the arguments that `with` leaves out."""

    STAGE = "stage"  # a function gets the item as its first argument
    SOURCE = "source"  # is called with `with` alone
    SINK = "sink"
    ARGUMENT = "argument"  # nested: a function is handed over, and whoever calls it gives the rest


@dataclass
class TargetCheck:
    """Checks all targets of one config."""

    config_dir: Path | None = None
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        """One set of parsed modules for the whole config."""
        self._lookup = Lookup(Modules(self.config_dir))
        self._known: frozenset[str] = frozenset()

    def run(self, root: Map) -> list[Problem]:
        """The problems of source, stages and sink, and of what is nested in their arguments."""
        targets = [(root.get("source"), Role.SOURCE), (root.get("sink"), Role.SINK)]
        for node, role in [*targets, *((stage, Role.STAGE) for stage in stages_of(root))]:
            if isinstance(node, Map):
                self._check(node, role)
        return self.problems

    def _check(self, node: Map, role: Role) -> None:
        arguments = node.get("with")
        if isinstance(arguments, Map) and role is Role.SOURCE and is_dataset_source(node):
            self._of_dataset(arguments)
        elif isinstance(arguments, Map):
            self._nested(arguments)
        uses = node.get("uses")
        if not isinstance(uses, Scalar):
            return
        takes_some = callable(uses.value) or isinstance(uses.value, str)
        if isinstance(arguments, Map) and arguments.entries and not takes_some:
            message = f"`uses` is an object ({type(uses.value).__name__}), which takes no arguments"
            self.problems.append(node.entries["with"].key_place.problem(message, "remove `with`"))
        callee = self._callee(uses)
        if callee is None or not (arguments is None or isinstance(arguments, Map)):
            return
        label = uses.value if isinstance(uses.value, str) else getattr(uses.value, "__qualname__", "it")
        given = arguments.entries if isinstance(arguments, Map) else {}
        fields = node.get("field") if role is Role.STAGE else None
        fields = fields if isinstance(fields, Map) else None
        order_point = role is Role.STAGE and built_in(uses.value) in ORDER_POINTS
        if role in {Role.STAGE, Role.SINK} and callee.has_call is False and not order_point:
            message = f"`{label}` has no `__call__`, so it cannot be called with an item"
            self.problems.append(uses.place.problem(message, "name a function, or a class with `__call__`"))
        if callee.signature is not None:
            found = _Call(label, callee, role, given, fields, uses.place, self._known)
            self.problems += found.problems(callee.signature)

    def _of_dataset(self, arguments: Map) -> None:
        """Its dataset is called with `with` alone; samplers are given the dataset where they want it."""
        for key, inner in children(arguments):
            if isinstance(inner, Map) and "uses" in inner.entries:
                self._known = _GIVEN_TO_SAMPLERS if key in {"sampler", "batch_sampler"} else frozenset()
                self._nested_map(inner, Role.SOURCE)
        self._known = frozenset()

    def _nested(self, node: Node) -> None:
        for _, inner in children(node):
            if isinstance(inner, Map):
                self._nested_map(inner)
            elif isinstance(inner, List):
                self._nested(inner)

    def _nested_map(self, node: Map, role: Role = Role.ARGUMENT) -> None:
        for word in _OTHERS_USES:
            if word in node.entries and "uses" not in node.entries:
                place = node.entries[word].key_place
                self.problems.append(place.problem(f"`{word}` is another tool's word", "did you mean `uses`?"))
        if "uses" not in node.entries:
            self._nested(node)
            return
        for key, entry in node.entries.items():
            if key not in {"uses", "with"}:
                message = f"a mapping with `uses` takes only `with` besides it, found `{key}`"
                mend = key_mend(str(key), ["uses", "with"], "with")
                if mend.startswith("known"):
                    mend = f"if it is an argument: with: {{{key}: ...}}"
                self.problems.append(entry.key_place.problem(message, mend))
        uses = node.get("uses")
        if not isinstance(uses, Scalar) or isinstance(uses.value, int | float):
            place = node.entries["uses"].node.place
            self.problems.append(place.problem("`uses` takes an import path", "write pkg.module.name"))
        self._check(node, role)

    def _callee(self, uses: Scalar) -> Callee | None:
        if not isinstance(uses.value, str):
            return callee_of_object(uses.value) if callable(uses.value) else None
        try:
            return self._found(uses.value, uses.place)
        except BrokenSourceError as error:
            place = Place(_near(error.path), error.line, error.column, error.source_line)
            mend = f"`{uses.value}` (line {uses.place.line}) needs this file"
            self.problems.append(place.problem(f"not Python: {error.message}", mend))
            return None

    def _found(self, path: str, place: Place) -> Callee | None:
        module, attributes = split_path(path)
        words = attributes.split(".") if attributes is not None else []
        mistake = _spelling(path, module, words)
        if mistake is not None:
            self.problems.append(place.problem(*mistake))
            return None
        start, words = self._start(module, words, place)
        if not words:
            return None
        found = self._lookup.path(start, words)
        last = found.module if isinstance(found, Definition) else found if isinstance(found, Module) else None
        main = start or self._lookup.modules.find(words[0])
        if any(m is not None and m.path is not None and is_running_script(m.path) for m in (main, last)):
            message = f"`{path}` is the running script itself: every worker would run it again"
            self.problems.append(place.problem(message, "move the function to a module of its own"))
            return None
        return self._judged(path, place, found)

    def _start(self, module: str, words: list[str], place: Place) -> tuple[Module | None, list[str]]:
        if not is_file(module):
            return None, [*module.split("."), *words]
        file = file_path(module, self.config_dir)
        if not is_there(file):
            near = nearest(file.name, (p.name for p in file.parent.glob("*.py")))
            mend = (
                f"did you mean `{module[: -len(file.name)]}{near}`?" if near else "it is looked for beside the config"
            )
            self.problems.append(place.problem(f"no file `{_near(file)}`", mend))
            return None, []
        return self._lookup.modules.file(file), words

    def _judged(self, path: str, place: Place, found: object) -> Callee | None:
        if isinstance(found, Absent):
            self.problems.append(_absent_problem(path, place, found))
            return None
        if isinstance(found, Module):
            if found.tree is not None:
                names = [name for name in found.bindings if not name.startswith("_")][:_SHOWN_NAMES]
                mend = f"it has {', '.join(f'`{name}`' for name in names)}" if names else "name a function in it"
                self.problems.append(place.problem(f"`{path}` is a module, not a function or class", mend))
            return None
        callee = callee_of(found, self._lookup) if isinstance(found, Definition) else None
        known = cheap_object(path)
        if isinstance(known, Absent) and (callee is None or callee.signature is None):
            self.problems.append(_absent_problem(path, place, known))
            return None
        if not isinstance(known, Known) or not callable(known.target):
            return callee
        # Having the object costs nothing, and it knows best: one in C may take less than its Python twin does.
        itself = callee_of_object(known.target)
        return itself if itself.signature is not None or callee is None else callee


def _spelling(path: str, module: str, words: list[str]) -> tuple[str, str] | None:
    """What can be said of a path without looking anything up."""
    if module.partition(".")[0] == "__main__":
        return f"`{path}` is the running script itself", "move the function to a module of its own"
    if is_file(module):
        if not words:
            return f"`{path}` names a file only", f"add what to take from it: `{path}:function`"
    elif not words and "." not in module:
        return (
            f"`{path}` is not an import path",
            "write pkg.module.name, or ./file.py:name for a file beside the config",
        )
    parts = [*([] if is_file(module) else module.split(".")), *words]
    if not all(part.isidentifier() for part in parts):
        mend = "write pkg.module.name, pkg.module:name or ./file.py:name"
        return f"`{path}` is not an import path", mend
    return None


def _absent_problem(path: str, place: Place, found: Absent) -> Problem:
    near = nearest(found.word, (name for name in found.choices if not name.startswith("__")))
    if not found.owner:
        mend = f"did you mean `{near}`?" if near else "is it installed, or beside the config?"
        return place.problem(f"`{path}`: no module named `{found.word}`", mend)
    mend = f"did you mean `{near}`?" if near else ""
    return place.problem(f"`{path}`: `{found.owner}` has no `{found.word}`", mend)


def _near(path: Path) -> str:
    """A file as the user would write it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@dataclass(frozen=True)
class _Call:
    """One call to be: what is given, and by whom."""

    label: str
    callee: Callee
    role: Role
    given: dict[str, Entry] | object
    fields: Map | None
    place: Place
    known: frozenset[str] = frozenset()

    def problems(self, signature: Signature) -> Iterator[Problem]:
        given: dict[str, Entry] = self.given if isinstance(self.given, dict) else {}
        parameters = dict(signature.parameters)
        is_called_with_item = self.callee.kind is Kind.FUNCTION and self.role in {Role.STAGE, Role.SINK}
        filled: set[str] = set()
        if is_called_with_item and self.fields is not None:
            filled = {str(key) for key in self.fields.entries}
            yield from self._unknown(self.fields.entries.items(), parameters, "field")
        elif is_called_with_item:
            item = next((p.name for p in parameters.values() if p.kind in _BY_POSITION), None)
            yield from self._item(item, given, parameters)
            parameters.pop(item or "", None)
            given = {key: entry for key, entry in given.items() if key != item}
        yield from self._unknown(given.items(), parameters, "with")
        if self.role is not Role.ARGUMENT or self.callee.kind is Kind.ONCE:
            # An argument that is misspelt is not missing as well.
            meant = {nearest(str(key), parameters) for key in given if key not in parameters}
            yield from self._missing({*given, *filled, *meant, *self.known}, parameters)

    def _item(self, item: str | None, given: dict[str, Entry], parameters: dict[str, Parameter]) -> Iterator[Problem]:
        if item is None and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values()):
            yield self.place.problem(f"`{self.label}` takes no item: it has no positional argument", "give it one")
        if item is not None and item in given:
            message = f"`{item}` is the item: `{self.label}` is called with it"
            yield given[item].key_place.problem(message, f"remove `{item}`, or map it with `field: {{{item}: NAME}}`")

    def _unknown(self, given: object, parameters: dict[str, Parameter], word: str) -> Iterator[Problem]:
        takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        known = [
            p.name for p in parameters.values() if p.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        ]
        for key, entry in given:  # type: ignore[attr-defined]
            parameter = parameters.get(key)
            if parameter is not None and parameter.kind is Parameter.POSITIONAL_ONLY:
                message = f"`{self.label}` takes `{key}` by position only, so `{word}` cannot give it"
                yield entry.key_place.problem(message, "wrap it in a function of your own")
            elif key not in known and not takes_any:
                near = nearest(str(key), known)
                takes = f"it takes {', '.join(f'`{name}`' for name in known)}" if known else "it takes none"
                mend = f"did you mean `{near}`?" if near else takes
                yield entry.key_place.problem(f"`{self.label}` has no argument `{key}`", mend)

    def _missing(self, given: set[str | None], parameters: dict[str, Parameter]) -> Iterator[Problem]:
        variable = {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}
        for parameter in parameters.values():
            if parameter.kind in variable or parameter.default is not Parameter.empty or parameter.name in given:
                continue
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                mend = "wrap it in a function of your own: it takes it by position only"
            elif self.known:
                mend = f"write {{uses: {self.label}, with: {{{parameter.name}: ...}}}}"
            else:
                mend = f"add `with: {{{parameter.name}: ...}}`"
            yield self.place.problem(f"`{self.label}` needs the argument `{parameter.name}`", mend)
