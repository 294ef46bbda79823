"""Reads the parameters of a function or class from its source, with the plain values that they accept. Checks values.

Decides only what the source shows. Imports nothing; runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, Signature
from typing import Any, Final, Literal, NamedTuple

from stagepipe.config.document import write_flow_yaml
from stagepipe.config.source_code import (
    AssignedName,
    BrokenSourceError,
    Definition,
    DefinitionLookup,
    ImportedName,
    LookupResult,
    ParsedModule,
    find_called,
    flatten_statements,
    has_yield,
)
from stagepipe.config.suggestions import make_value_hint
from stagepipe.config.target_files import find_installed_package
from stagepipe.config.value_types import format_value, make_boolean_hint
from stagepipe.core import PACKAGE_DIR, closest_match, has_call_method, is_async, is_async_generator


class ValueKind(Enum):
    """A kind of plain value; messages use the values of the members."""

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
    """A list or tuple. `items` are the values that each item may have, None for any; `length` None is any length."""

    items: tuple[AcceptedValue, ...] | None
    length: int | None = None


@dataclass(frozen=True)
class MappingOf:
    """A dict. `values` are the values that it may contain, None for any."""

    values: tuple[AcceptedValue, ...] | None


AcceptedValue = ValueKind | Choice | ListOf | MappingOf


@dataclass(frozen=True)
class Annotation:
    """The annotation of a parameter, with its module. `default` is the default of the parameter, if it has one."""

    module: ParsedModule
    expression: ast.expr
    default: ast.expr | None = None


class _UndecidedError(Exception):
    """The source does not show which values an annotation accepts."""


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
_MAX_ALIAS_DEPTH: Final = 10
_PAIR: Final = 2


def read_annotation(annotation: Annotation, lookup: DefinitionLookup) -> tuple[AcceptedValue, ...] | None:
    """Return the values that a parameter accepts; None if the source does not show them, or objects are accepted too.

    Known are `int`, `float`, `bool`, `str`, paths, `Literal`, lists, tuples and mappings of them, `None`, unions, and
    names for such types. The value of the default is accepted too, as in `size: int = None`. Of installed packages,
    only stagepipe is read: many annotate less than they accept, and users cannot change them.
    """
    path = annotation.module.path
    if path is None or find_installed_package(path) not in {None, PACKAGE_DIR.name}:
        return None
    try:
        accepted = list(_read(annotation.expression, annotation.module, lookup, _MAX_ALIAS_DEPTH))
    except _UndecidedError:
        return None
    if isinstance(annotation.default, ast.Constant) and annotation.default.value is None:
        accepted.append(ValueKind.NONE)
    return tuple(dict.fromkeys(accepted))


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
    """Return the accepted items and their number. For a tuple of several types, each item may have any of them."""
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
    """Return the values that a container may hold; None for any: a list of unknown objects is still a list."""
    try:
        return tuple(dict.fromkeys(_read(node, module, lookup, depth)))
    except _UndecidedError:
        return None


def _make_list(name: str, items: tuple[AcceptedValue, ...] | None, length: int | None) -> Iterator[AcceptedValue]:
    if name.rpartition(".")[2] in _TEXT_IS_A_LIST_TOO and (items is None or ValueKind.STR in items):
        yield ValueKind.STR
    yield ListOf(items, length)


def _find_full_name(node: ast.expr, module: ParsedModule) -> str:
    """Return the name of a type with its module, as in `typing.Literal`; "" if its module is unknown."""
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


_SIGNATURE_PRESERVING_DECORATORS: Final = frozenset(
    {
        "no_grad", "inference_mode", "lru_cache", "cache", "final", "override", "deprecated", "wraps",
        "runtime_checkable", "total_ordering", "abstractmethod", "enable_grad", "staticmethod", "classmethod",
    }
)  # fmt: skip
"""Decorators that keep the parameters of a function or class."""


class CalleeKind(Enum):
    """How a target is built."""

    FUNCTION = "function"  # called for each item, with the item first and the arguments bound
    FACTORY = "factory"  # a class or a classmethod: called once, with the arguments


@dataclass(frozen=True, kw_only=True)
class Callee:
    """The known properties of a target. `signature` is None if the source does not show it.

    For parameters that were read from source, the annotations are `Annotation`s.
    """

    kind: CalleeKind
    signature: Signature | None
    has_call: bool | None = None  # whether the instances of a class are callable; None: unknown
    awaited: Literal["", "coroutine", "generator"] = ""  # what a call with an item returns, if it must be awaited
    item_signature: Signature | None = None  # of the `__call__` of a class, if the source shows it


def inspect_definition(lookup_result: LookupResult, lookup: DefinitionLookup) -> Callee | None:
    """Return the callee of a definition; None if the source does not show its kind."""
    if not isinstance(lookup_result, Definition):
        return None
    if isinstance(lookup_result.node, ast.ClassDef):
        signature, has_call = _class_signature(lookup_result, lookup), _has_call(lookup_result, lookup)
        awaited = _find_awaited(find_called(lookup_result, lookup))
        item_signature = _call_signature(lookup_result, lookup) if has_call else None
        return Callee(
            kind=CalleeKind.FACTORY,
            signature=signature,
            has_call=has_call,
            awaited=awaited,
            item_signature=item_signature,
        )
    decorators = {_last_name(decorator) for decorator in lookup_result.node.decorator_list}
    is_shown = decorators <= _SIGNATURE_PRESERVING_DECORATORS
    signature = _signature_from_ast(lookup_result.node.args, lookup_result.module) if is_shown else None
    if lookup_result.owner is not None and "classmethod" in decorators:
        return Callee(kind=CalleeKind.FACTORY, signature=_drop_first_parameter(signature))
    if lookup_result.owner is not None and decorators - _SIGNATURE_PRESERVING_DECORATORS:
        return None
    return Callee(
        kind=CalleeKind.FUNCTION,
        signature=signature,
        awaited=_find_awaited(lookup_result.node) if is_shown else "",
    )


def _find_awaited(called: ast.AST | None) -> Literal["", "coroutine", "generator"]:
    if not isinstance(called, ast.AsyncFunctionDef):
        return ""
    return "generator" if has_yield(called) else "coroutine"


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Call):
        return _last_name(expression.func)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "?")


def _signature_from_ast(arguments: ast.arguments, module: ParsedModule) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing_defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parameters = []
    for index, (argument, default) in enumerate(zip(positional, [*missing_defaults, *arguments.defaults], strict=True)):
        kind = Parameter.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else Parameter.POSITIONAL_OR_KEYWORD
        annotation = _make_annotation(argument.annotation, default, module)
        parameters.append(_make_parameter(argument.arg, kind, annotation, has_default=default is not None))
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        annotation = _make_annotation(argument.annotation, default, module)
        parameters.append(
            _make_parameter(argument.arg, Parameter.KEYWORD_ONLY, annotation, has_default=default is not None)
        )
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def _make_annotation(expression: ast.expr | None, default: ast.expr | None, module: ParsedModule) -> object:
    return Parameter.empty if expression is None else Annotation(module, expression, default)


def _make_parameter(name: str, kind: inspect._ParameterKind, annotation: object, *, has_default: bool) -> Parameter:
    return Parameter(name, kind, default=None if has_default else Parameter.empty, annotation=annotation)


def _drop_first_parameter(signature: Signature | None) -> Signature | None:
    if signature is None:
        return None
    parameters = list(signature.parameters.values())
    first_is_positional = bool(parameters) and parameters[0].kind in {
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    }
    return signature.replace(parameters=parameters[1:] if first_is_positional else parameters)


def _class_signature(class_definition: Definition, lookup: DefinitionLookup) -> Signature | None:
    """Return the signature of the nearest `__init__` or `__new__`, or of a dataclass's fields. None if unknown."""
    chain = lookup.resolve_bases(class_definition)
    # The metaclass of an unknown base may take other arguments than __init__, so the chain must be known.
    return None if chain is None else _chain_signature(chain)


def _chain_signature(chain: list[Definition]) -> Signature | None:
    """Return the signature of a class; `chain` is the class and its bases, nearest first."""
    for index, definition in enumerate(chain):
        decorators = _decorator_names(definition)
        if "dataclass" in decorators:
            return _dataclass_signature(chain[index:])
        if decorators - _SIGNATURE_PRESERVING_DECORATORS:
            return None
        for name in ("__init__", "__new__"):
            method = _find_method(definition.node, name)
            if method is not None:
                method_decorators = {_last_name(decorator) for decorator in method.decorator_list}
                if not method_decorators <= _SIGNATURE_PRESERVING_DECORATORS:
                    return None
                signature = _drop_first_parameter(_signature_from_ast(method.args, definition.module))
                return _add_forwarded_parameters(signature, method, chain[index:])
    return Signature()


def _add_forwarded_parameters(
    signature: Signature | None, method: ast.FunctionDef, chain: list[Definition]
) -> Signature | None:
    """Replace `**options` by the parameters of the base, if `method` only passes it on to the base."""
    definition, *bases = chain
    name = method.args.kwarg.arg if method.args.kwarg is not None else ""
    call = _find_forwarding_call(method, name)
    has_one_base = isinstance(definition.node, ast.ClassDef) and len(definition.node.bases) == 1
    inherited = _chain_signature(bases) if call is not None and has_one_base else None
    if signature is None or call is None or inherited is None:
        return signature
    own = [p for p in signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    base_parameters = list(inherited.parameters.values())
    given = {p.name for p in [*own, *base_parameters[: len(call.args)]]} | {k.arg for k in call.keywords}
    forwarded = [
        p if p.kind is Parameter.VAR_KEYWORD else p.replace(kind=Parameter.KEYWORD_ONLY)
        for p in base_parameters
        if p.name not in given and p.kind not in {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}
    ]
    return Signature([*own, *forwarded])


def _find_forwarding_call(method: ast.FunctionDef, name: str) -> ast.Call | None:
    """Return the call `super().__init__(..., **name)`; None if the method uses `name` in any other way too."""
    nodes = list(ast.walk(method))
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == f"super().{method.name}"
        and any(k.arg is None and isinstance(k.value, ast.Name) and k.value.id == name for k in node.keywords)
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    ]
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    return calls[0] if name and len(calls) == uses == 1 else None


def _find_method(node: ast.AST, name: str) -> ast.FunctionDef | None:
    methods = [
        s for s in flatten_statements(getattr(node, "body", [])) if isinstance(s, ast.FunctionDef) and s.name == name
    ]
    return methods[-1] if methods else None


def _has_call(class_definition: Definition, lookup: DefinitionLookup) -> bool | None:
    chain = lookup.resolve_bases(class_definition)
    if chain is None:
        return None
    if any(
        "dataclass" not in _decorator_names(d) and _decorator_names(d) - _SIGNATURE_PRESERVING_DECORATORS for d in chain
    ):
        return None
    member = lookup.resolve_member(class_definition, "__call__")
    if isinstance(member, Definition):
        return True
    is_assigned = any(
        "__call__" in ast.dump(s) for d in chain for s in d.node.body if not isinstance(s, ast.FunctionDef)
    )
    return None if is_assigned else False


def _call_signature(class_definition: Definition, lookup: DefinitionLookup) -> Signature | None:
    method = lookup.resolve_member(class_definition, "__call__")
    callee = inspect_definition(method, lookup)
    is_method = callee is not None and isinstance(method, Definition) and not isinstance(method.node, ast.ClassDef)
    return _drop_first_parameter(callee.signature) if callee is not None and is_method else None


def _decorator_names(definition: Definition) -> set[str]:
    return {_last_name(decorator) for decorator in definition.node.decorator_list}


def _dataclass_signature(chain: list[Definition]) -> Signature | None:
    fields: dict[str, Parameter] = {}
    for definition in reversed(chain):
        if "dataclass" not in _decorator_names(definition):
            if _find_method(definition.node, "__init__") is not None:
                return None
            continue
        for statement in definition.node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            annotation = ast.unparse(statement.annotation)
            if not annotation.endswith("KW_ONLY") and "ClassVar" not in annotation and _is_in_init(statement.value):
                name = statement.target.id
                has_default = _has_default(statement.value)
                # A config passes arguments by keyword, so the order of fields and defaults does not matter.
                accepts = _make_annotation(statement.annotation, statement.value, definition.module)
                fields[name] = _make_parameter(name, Parameter.KEYWORD_ONLY, accepts, has_default=has_default)
    return Signature(list(fields.values()))


def _field_call(value: ast.expr | None) -> ast.Call | None:
    return value if isinstance(value, ast.Call) and _last_name(value) == "field" else None


def _is_in_init(value: ast.expr | None) -> bool:
    call = _field_call(value)
    return call is None or not any(
        k.arg == "init" and isinstance(k.value, ast.Constant) and k.value.value is False for k in call.keywords
    )


def _has_default(value: ast.expr | None) -> bool:
    call = _field_call(value)
    if call is not None:
        return any(keyword.arg in {"default", "default_factory"} for keyword in call.keywords)
    return value is not None


_CLASSES_WITHOUT_SIGNATURE: Final = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
"""C classes without a signature before Python 3.13. They take no keywords; their Python versions do."""

_POSITIONAL_ONLY_SIGNATURE: Final = Signature(
    [Parameter("item", Parameter.POSITIONAL_ONLY), Parameter("items", Parameter.VAR_POSITIONAL)]
)


def inspect_object(target: object) -> Callee:
    """Return the callee of an object from Python."""
    is_factory = inspect.isclass(target) or (
        inspect.isroutine(target) and inspect.isclass(getattr(target, "__self__", None))
    )
    has_call = has_call_method(target) if inspect.isclass(target) else None
    try:
        signature = inspect.signature(target) if callable(target) else None
    except (ValueError, TypeError):
        signature = _POSITIONAL_ONLY_SIGNATURE if target in _CLASSES_WITHOUT_SIGNATURE else None
    kind = CalleeKind.FACTORY if is_factory else CalleeKind.FUNCTION
    awaited: Any = "generator" if is_async_generator(target) else "coroutine" if is_async(target) else ""
    return Callee(kind=kind, signature=signature, has_call=has_call, awaited=awaited)


def inspect_user_object(target: object, lookup: DefinitionLookup) -> Callee:
    """Return the callee of an object from Python, with the annotations of its source, as for an import path.

    The source is its module on disk. An object that the module does not have under its own name has none.
    """
    callee = inspect_object(target)
    definition = _find_definition(target, lookup)
    source = None if definition is None or callee.signature is None else inspect_definition(definition, lookup)
    if callee.signature is None or source is None or source.signature is None:
        return callee
    shown = source.signature.parameters
    parameters = [
        parameter.replace(annotation=shown[name].annotation if name in shown else Parameter.empty)
        for name, parameter in callee.signature.parameters.items()
    ]
    return replace(callee, signature=callee.signature.replace(parameters=parameters))


def _find_definition(target: object, lookup: DefinitionLookup) -> Definition | None:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    try:
        if operator.attrgetter(name)(sys.modules[module]) != target:
            return None
        found = lookup.find_target(f"{module}:{name}")
    except (AttributeError, KeyError, BrokenSourceError):  # a local function, or a file that changed after its import
        return None
    return found if isinstance(found, Definition) else None


_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, list, tuple, dict})
_ACCEPTED_TYPES: Final = {
    ValueKind.INT: (int,),  # as in Python, True is a whole number
    ValueKind.FLOAT: (int, float),
    ValueKind.BOOL: (bool,),
    ValueKind.STR: (str,),
    ValueKind.NONE: (type(None),),
}
_PLURALS: Final = {
    ValueKind.INT: "whole numbers",
    ValueKind.FLOAT: "numbers",
    ValueKind.BOOL: "true or false",
    ValueKind.STR: "strings",
}


class Mismatch(NamedTuple):
    """A value that a parameter does not accept. `path` leads to the wrong part of it; `message` says what is wrong."""

    path: tuple[Any, ...]
    message: str
    hint: str


def find_mismatch(value: Any, accepted: Sequence[AcceptedValue], path: tuple[Any, ...] = ()) -> Mismatch | None:
    """Return the mismatch of a value; None if it is accepted or undecided.

    >>> mismatch = find_mismatch("stretchy", (Choice("contain"), Choice("cover"), Choice("stretch")))
    >>> mismatch.hint
    'did you mean `stretch`?'
    """
    if any(_accepts(one, value) for one in accepted):
        return None
    containers = [one for one in accepted if isinstance(one, ListOf | MappingOf)]
    inner = next(filter(None, (_find_inner(one, value, path) for one in containers)), None)
    return inner or _make_mismatch(value, accepted, path)


def _accepts(accepted: AcceptedValue, value: Any) -> bool:
    if type(value) not in _PLAIN_TYPES or (type(value) is dict and "uses" in value):  # an object is built from it
        return True
    if isinstance(accepted, Choice):
        return type(value) is type(accepted.value) and value == accepted.value
    if isinstance(accepted, ValueKind):
        return isinstance(value, _ACCEPTED_TYPES[accepted])
    if isinstance(accepted, MappingOf):
        values = accepted.values
        return isinstance(value, dict) and (values is None or all(_accepts_any(values, v) for v in value.values()))
    if not isinstance(value, list | tuple) or accepted.length not in {None, len(value)}:
        return False
    items = accepted.items
    return items is None or all(_accepts_any(items, item) for item in value)


def _accepts_any(accepted: Sequence[AcceptedValue], value: Any) -> bool:
    return any(_accepts(one, value) for one in accepted)


def _find_inner(container: AcceptedValue, value: Any, path: tuple[Any, ...]) -> Mismatch | None:
    """Return the mismatch inside a list or mapping of the right kind and length."""
    accepted: Sequence[AcceptedValue] | None = None
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(container, ListOf) and isinstance(value, list | tuple) and container.length in {None, len(value)}:
        accepted, parts = container.items, enumerate(value)
    elif isinstance(container, MappingOf) and isinstance(value, dict):
        accepted, parts = container.values, value.items()
    if accepted is None:
        return None
    return next(filter(None, (find_mismatch(part, accepted, (*path, key)) for key, part in parts)), None)


def _make_mismatch(value: Any, accepted: Sequence[AcceptedValue], path: tuple[Any, ...]) -> Mismatch:
    message = f"expected {describe_accepted(accepted)}, found {format_value(value)}"
    return Mismatch(path, message, _make_hint(value, accepted))


def describe_accepted(accepted: Sequence[AcceptedValue]) -> str:
    """Describe the accepted values without null, because a config can omit the argument instead.

    >>> describe_accepted((ValueKind.INT, Choice("auto")))
    'a whole number or `auto`'
    """
    choices = [one.value for one in accepted if isinstance(one, Choice) and isinstance(one.value, str)]
    others = [one for one in accepted if not (isinstance(one, Choice) and isinstance(one.value, str))]
    words = [_name(one) for one in others if one is not ValueKind.NONE]
    if choices:
        listed = ", ".join(f"`{choice}`" for choice in choices)
        words.append(f"one of {listed}" if len(choices) > 1 else listed)
    words = list(dict.fromkeys(words)) or ["null"]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _name(accepted: AcceptedValue) -> str:
    if isinstance(accepted, ValueKind):
        return accepted.value
    if isinstance(accepted, Choice):
        return write_flow_yaml(accepted.value)
    if isinstance(accepted, MappingOf):
        return "a mapping"
    count = "" if accepted.length is None else f"{accepted.length} "
    kinds = [_PLURALS.get(item, "") if isinstance(item, ValueKind) else "" for item in accepted.items or ()]
    items = kinds[0] if len(set(kinds)) == 1 else ""
    if not count:
        return f"a list of {items}" if items else "a list"
    return f"a list of {count}{items or 'values'}"


def _make_hint(value: Any, accepted: Sequence[AcceptedValue]) -> str:
    """Say what to write instead, if the value shows the intention."""
    lists = [one for one in accepted if isinstance(one, ListOf) and one.length in {None, 1}]
    if any(one.items is not None and _accepts_any(one.items, value) for one in lists):
        return f"write {write_flow_yaml([value])}"
    return _make_text_hint(value, accepted) if isinstance(value, str) else _make_number_hint(value, set(accepted))


def _make_text_hint(text: str, accepted: Sequence[AcceptedValue]) -> str:
    choices = [one.value for one in accepted if isinstance(one, Choice) and isinstance(one.value, str)]
    if ValueKind.BOOL in accepted and (hint := make_boolean_hint(text)):
        return hint
    if choices and (len(choices) == len(accepted) or closest_match(text.casefold(), choices)):
        return make_value_hint(text, choices)
    return "remove the quotes" if {ValueKind.INT, ValueKind.FLOAT} & set(accepted) and _is_number(text) else ""


def _make_number_hint(value: Any, accepted: Container[AcceptedValue]) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if ValueKind.STR in accepted:
        return "quote it"
    if ValueKind.BOOL in accepted and value in {0, 1}:
        return f"write {write_flow_yaml(bool(value))}"
    return f"write {value:.0f}" if ValueKind.INT in accepted and isinstance(value, float) and value.is_integer() else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_mismatch(name: str, label: str, mismatch: Mismatch) -> str:
    """Return the message for the argument `name` of a target."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in mismatch.path)
    return f"`{name}{place}` of `{label}`: {mismatch.message}"
