"""Reads the parameters of a function or class from its source, or from the object itself.

Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, Signature
from typing import Final

from stagepipe.config.static_analysis.annotations import Annotation
from stagepipe.config.static_analysis.lookup import Definition, DefinitionLookup, LookupResult
from stagepipe.config.static_analysis.modules import BrokenSourceError, ParsedModule, flatten_statements

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


@dataclass(frozen=True)
class Callee:
    """What is known about a target. `signature` is None if the source does not show it.

    The annotations of parameters that were read from source are `Annotation`s.
    """

    kind: CalleeKind
    signature: Signature | None
    has_call: bool | None = None  # whether the instances of a class are callable; None: unknown
    is_async: bool = False  # whether a call gives something to await


def inspect_definition(lookup_result: LookupResult, lookup: DefinitionLookup) -> Callee | None:
    """Return the callee of a definition; None if the source does not show what it is."""
    if not isinstance(lookup_result, Definition):
        return None
    if isinstance(lookup_result.node, ast.ClassDef):
        return Callee(CalleeKind.FACTORY, _class_signature(lookup_result, lookup), _has_call(lookup_result, lookup))
    decorators = {_last_name(decorator) for decorator in lookup_result.node.decorator_list}
    is_shown = decorators <= _SIGNATURE_PRESERVING_DECORATORS
    signature = _signature_from_ast(lookup_result.node.args, lookup_result.module) if is_shown else None
    if lookup_result.owner is not None and "classmethod" in decorators:
        return Callee(CalleeKind.FACTORY, _drop_first_parameter(signature))
    if lookup_result.owner is not None and decorators - _SIGNATURE_PRESERVING_DECORATORS:
        return None
    is_async = is_shown and isinstance(lookup_result.node, ast.AsyncFunctionDef)
    return Callee(CalleeKind.FUNCTION, signature, is_async=is_async)


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
    # A metaclass of an unknown base may take other arguments than __init__, so the chain must be known.
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
    """Replace `**options` by the parameters of the base, if all that `method` does with it is to pass it on to it."""
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
    has_call = _class_has_call(target)
    try:
        signature = inspect.signature(target) if callable(target) else None
    except (ValueError, TypeError):
        signature = _POSITIONAL_ONLY_SIGNATURE if target in _CLASSES_WITHOUT_SIGNATURE else None
    kind = CalleeKind.FACTORY if is_factory else CalleeKind.FUNCTION
    is_async = inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    return Callee(kind, signature, has_call, is_async)


def inspect_user_object(target: object, lookup: DefinitionLookup) -> Callee:
    """Return the callee of an object from Python, with the annotations of its source: those that its path would have.

    The source is that of its module on disk; an object that the module does not have under its own name has none.
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
    except (AttributeError, KeyError, BrokenSourceError):  # a local function; changed since it was imported
        return None
    return found if isinstance(found, Definition) else None


def _class_has_call(target: object) -> bool | None:
    if not inspect.isclass(target):
        return None
    return any("__call__" in vars(base) for base in target.__mro__)
