"""Reads which plain values an annotation accepts: those that a config can hold. Imports nothing.

Runs in the process that loads the config. Only what the source shows is decided; see `read_annotation`.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stagepipe.config.static_analysis.lookup import DefinitionLookup
from stagepipe.config.static_analysis.modules import AssignedName, ImportedName, ParsedModule
from stagepipe.core import PACKAGE_DIR


class ValueKind(Enum):
    """A kind of plain value; the values are the words of messages."""

    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    STR = "a string"
    NONE = "null"


@dataclass(frozen=True)
class Choice:
    """One value of a `Literal`."""

    value: str | int | bool | None


@dataclass(frozen=True)
class ListOf:
    """A list or tuple. `items` are what each item may be, None for anything; `length` is None for any length."""

    items: tuple[AcceptedValue, ...] | None
    length: int | None = None


@dataclass(frozen=True)
class MappingOf:
    """A dict. `values` are what each value may be, None for anything."""

    values: tuple[AcceptedValue, ...] | None


AcceptedValue = ValueKind | Choice | ListOf | MappingOf


@dataclass(frozen=True)
class Annotation:
    """The annotation of a parameter, in the module where it is written. `default` is the default, if it has one."""

    module: ParsedModule
    expression: ast.expr
    default: ast.expr | None = None


class _UndecidedError(Exception):
    """The source does not show what an annotation accepts."""


_KIND_BY_NAME: Final = {
    "builtins.int": (ValueKind.INT,),
    "builtins.float": (ValueKind.FLOAT,),
    "builtins.bool": (ValueKind.BOOL,),
    "builtins.str": (ValueKind.STR,),
    "os.PathLike": (ValueKind.STR,),  # a config writes a path as text
    "pathlib.Path": (ValueKind.STR,),
}
_LIST_NAMES: Final = frozenset(
    {f"builtins.{name}" for name in ("list", "tuple", "set", "frozenset")}
    | {f"collections.abc.{name}" for name in ("Sequence", "Iterable", "Collection", "MutableSequence", "Set")}
    | {f"typing.{name}" for name in ("List", "Tuple", "Sequence", "Iterable", "Collection", "Set", "FrozenSet")}
)
_TEXT_IS_A_LIST_TOO: Final = frozenset({"Sequence", "Iterable", "Collection"})
_MAPPING_NAMES: Final = frozenset(
    {"builtins.dict", "typing.Dict", "typing.Mapping", "collections.abc.Mapping", "collections.abc.MutableMapping"}
)
_TYPING_MODULES: Final = frozenset({"typing", "typing_extensions"})
_BUILTIN_NAMES: Final = frozenset({"int", "float", "bool", "str", "list", "tuple", "set", "frozenset", "dict"})
_STDLIB: Final = sysconfig.get_path("stdlib")
_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
_MAX_ALIAS_DEPTH: Final = 10
_PAIR: Final = 2


def read_annotation(annotation: Annotation, lookup: DefinitionLookup) -> tuple[AcceptedValue, ...] | None:
    """Return what a parameter accepts; None if the source does not show it, or it may be more than plain values.

    Known are `int`, `float`, `bool`, `str`, paths, `Literal`, lists, tuples and mappings of them, `None`, unions, and
    names for such types. The value of the default is accepted too, as in `size: int = None`. Installed packages but
    stagepipe are not read: many annotate less than they accept, and users cannot change them.
    """
    if _is_foreign(annotation.module):
        return None
    try:
        accepted = list(_read(annotation.expression, annotation.module, lookup, _MAX_ALIAS_DEPTH))
    except _UndecidedError:
        return None
    if isinstance(annotation.default, ast.Constant) and annotation.default.value is None:
        accepted.append(ValueKind.NONE)
    return tuple(dict.fromkeys(accepted))


def _is_foreign(module: ParsedModule) -> bool:
    path = module.path
    if path is None or path.is_relative_to(PACKAGE_DIR):
        return path is None
    return path.is_relative_to(_STDLIB) or not _PACKAGE_FOLDERS.isdisjoint(path.parts)


def _read(node: ast.expr, module: ParsedModule, lookup: DefinitionLookup, depth: int) -> Iterator[AcceptedValue]:
    if isinstance(node, ast.Constant):
        yield from _read_constant(node, module, lookup, depth)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _read(node.left, module, lookup, depth)
        yield from _read(node.right, module, lookup, depth)
    elif isinstance(node, ast.Subscript):
        yield from _read_subscript(node, module, lookup, depth)
    else:
        yield from _read_name(node, module, lookup, depth)


def _read_constant(
    node: ast.Constant, module: ParsedModule, lookup: DefinitionLookup, depth: int
) -> Iterator[AcceptedValue]:
    if node.value is None:
        yield ValueKind.NONE
    elif isinstance(node.value, str) and depth:
        try:
            inner = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError):
            raise _UndecidedError from None
        yield from _read(inner, module, lookup, depth - 1)
    else:
        raise _UndecidedError


def _read_name(node: ast.expr, module: ParsedModule, lookup: DefinitionLookup, depth: int) -> Iterator[AcceptedValue]:
    name = _find_full_name(node, module)
    if name in _KIND_BY_NAME:
        yield from _KIND_BY_NAME[name]
    elif name in _LIST_NAMES:
        yield from _make_list(name, None, None)
    elif name in _MAPPING_NAMES:
        yield MappingOf(None)
    else:
        yield from _read_alias(node, module, lookup, depth)


def _read_alias(node: ast.expr, module: ParsedModule, lookup: DefinitionLookup, depth: int) -> Iterator[AcceptedValue]:
    """Read a name for a type, such as `Mode = Literal["a", "b"]`, of this module or one that it imports from."""
    bindings = module.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    binding = bindings[0] if bindings and all(b == bindings[0] for b in bindings) else None
    if not depth:
        raise _UndecidedError
    if isinstance(binding, AssignedName) and binding.value is not None:
        yield from _read(binding.value, module, lookup, depth - 1)
    elif isinstance(binding, ImportedName) and binding.name is not None:
        source = lookup.module_finder.find(binding.module)
        if source is None or source is module:
            raise _UndecidedError
        yield from _read_name(ast.Name(binding.name), source, lookup, depth - 1)
    else:
        raise _UndecidedError


def _read_subscript(
    node: ast.Subscript, module: ParsedModule, lookup: DefinitionLookup, depth: int
) -> Iterator[AcceptedValue]:
    name = _find_full_name(node.value, module)
    arguments = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "typing.Literal":
        for argument in arguments:
            yield _read_choice(argument)
    elif name == "typing.Annotated":
        yield from _read(arguments[0], module, lookup, depth)
    elif name in {"typing.Union", "typing.Optional"}:
        for argument in arguments:
            yield from _read(argument, module, lookup, depth)
        if name == "typing.Optional":
            yield ValueKind.NONE
    elif name == "os.PathLike":
        yield ValueKind.STR
    elif name in _MAPPING_NAMES and len(arguments) == _PAIR:
        yield MappingOf(_read_inner(arguments[1], module, lookup, depth))
    elif name in _LIST_NAMES:
        yield from _make_list(name, *_read_items(name, arguments, module, lookup, depth))
    else:
        raise _UndecidedError


def _read_choice(argument: ast.expr) -> Choice:
    if isinstance(argument, ast.UnaryOp) and isinstance(argument.op, ast.USub):
        inner = _read_choice(argument.operand)
        if type(inner.value) is int:
            return Choice(-inner.value)
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str | int | None):
        return Choice(argument.value)
    raise _UndecidedError


def _read_items(
    name: str, arguments: list[ast.expr], module: ParsedModule, lookup: DefinitionLookup, depth: int
) -> tuple[tuple[AcceptedValue, ...] | None, int | None]:
    """Return what the items may be, and how many there are. Those of a tuple of several types may be any of them."""
    is_tuple = name in {"builtins.tuple", "typing.Tuple"}
    is_endless = any(isinstance(a, ast.Constant) and a.value is Ellipsis for a in arguments)
    inner = [_read_inner(a, module, lookup, depth) for a in arguments if not _is_ellipsis(a)]
    known = [accepted for accepted in inner if accepted is not None]
    items = (
        tuple(dict.fromkeys(value for accepted in known for value in accepted)) if len(known) == len(inner) else None
    )
    return items, len(arguments) if is_tuple and not is_endless else None


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _read_inner(
    node: ast.expr, module: ParsedModule, lookup: DefinitionLookup, depth: int
) -> tuple[AcceptedValue, ...] | None:
    """Return what the content of a container may be; None for anything: a list of unknown objects is still a list."""
    try:
        return tuple(dict.fromkeys(_read(node, module, lookup, depth)))
    except _UndecidedError:
        return None


def _make_list(name: str, items: tuple[AcceptedValue, ...] | None, length: int | None) -> Iterator[AcceptedValue]:
    if name.rpartition(".")[2] in _TEXT_IS_A_LIST_TOO and (items is None or ValueKind.STR in items):
        yield ValueKind.STR
    yield ListOf(items, length)


def _find_full_name(node: ast.expr, module: ParsedModule) -> str:
    """Return the name of a type with its module, as in `typing.Literal`; "" if it is none of a known module."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        bindings = module.bindings.get(node.value.id, [])
        owners = {b.module for b in bindings if isinstance(b, ImportedName) and b.name is None}
        return _unify(next(iter(owners)), node.attr) if len(owners) == len(bindings) == 1 else ""
    if not isinstance(node, ast.Name):
        return ""
    bindings = module.bindings.get(node.id, [])
    if not bindings:
        return f"builtins.{node.id}" if node.id in _BUILTIN_NAMES else ""
    imported = {(b.module, b.name) for b in bindings if isinstance(b, ImportedName) and b.name is not None}
    if len(imported) != 1 or not all(isinstance(b, ImportedName) for b in bindings):
        return ""
    source, name = next(iter(imported))
    return _unify(source, str(name))


def _unify(module: str, name: str) -> str:
    return f"{'typing' if module in _TYPING_MODULES else module}.{name}"
