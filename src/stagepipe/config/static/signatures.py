"""What a function or class takes, from its source or from the object itself."""

from __future__ import annotations

import ast
import inspect
import operator
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, Signature
from typing import Final

from stagepipe.config.static.lookup import Definition, Found, Lookup
from stagepipe.config.static.modules import flattened

_SAME_SIGNATURE: Final = frozenset(
    {
        "no_grad", "inference_mode", "lru_cache", "cache", "final", "override", "deprecated", "wraps",
        "runtime_checkable", "total_ordering", "abstractmethod", "enable_grad", "staticmethod", "classmethod",
    }
)  # fmt: skip
"""Decorators that leave alone what a function or class takes."""


class Kind(Enum):
    """How a target is built."""

    FUNCTION = "function"  # its arguments are bound, the item comes as the first
    ONCE = "once"  # a class or a classmethod: called once with its arguments


@dataclass(frozen=True)
class Callee:
    """What is known of a target: how it is built, and what it takes (None: anything, as far as one can see)."""

    kind: Kind
    signature: Signature | None
    has_call: bool | None = None  # of a class: whether its instances can be called; None: unknown


def callee_of(found: Found, lookup: Lookup) -> Callee | None:
    """What a definition takes; None where the source does not tell even what it is."""
    if not isinstance(found, Definition):
        return None
    if isinstance(found.node, ast.ClassDef):
        return Callee(Kind.ONCE, _class_signature(found, lookup), _has_call(found, lookup))
    decorators = {_last_word(decorator) for decorator in found.node.decorator_list}
    signature = _signature(found.node.args) if decorators <= _SAME_SIGNATURE else None
    if found.owner is not None and "classmethod" in decorators:
        return Callee(Kind.ONCE, _without_first(signature))
    if found.owner is not None and decorators - _SAME_SIGNATURE:
        return None
    return Callee(Kind.FUNCTION, signature)


def _last_word(expression: ast.expr) -> str:
    if isinstance(expression, ast.Call):
        return _last_word(expression.func)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "?")


def _signature(arguments: ast.arguments) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    made = []
    for at, argument in enumerate(positional):
        kind = Parameter.POSITIONAL_ONLY if at < len(arguments.posonlyargs) else Parameter.POSITIONAL_OR_KEYWORD
        made.append(_parameter(argument.arg, kind, has_default=at >= first_default))
    if arguments.vararg:
        made.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        made.append(_parameter(argument.arg, Parameter.KEYWORD_ONLY, has_default=default is not None))
    if arguments.kwarg:
        made.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(made)


def _parameter(name: str, kind: inspect._ParameterKind, *, has_default: bool) -> Parameter:
    return Parameter(name, kind, default=None if has_default else Parameter.empty)


def _without_first(signature: Signature | None) -> Signature | None:
    if signature is None:
        return None
    parameters = list(signature.parameters.values())
    drop = bool(parameters) and parameters[0].kind in {
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    }
    return signature.replace(parameters=parameters[1:] if drop else parameters)


def _class_signature(found: Definition, lookup: Lookup) -> Signature | None:
    """`__init__` of the class or its nearest base; the fields of a dataclass; None for what makes its own."""
    chain = lookup.bases(found)
    for definition in chain or [found]:
        node = definition.node
        decorators = {_last_word(decorator) for decorator in node.decorator_list}
        if "dataclass" in decorators:
            return None if chain is None else _dataclass_signature(chain[chain.index(definition) :])
        if decorators - _SAME_SIGNATURE:
            return None
        for name in ("__init__", "__new__"):
            method = _method(node, name)
            if method is not None:
                plain = {_last_word(decorator) for decorator in method.decorator_list} <= _SAME_SIGNATURE
                # A metaclass further up may take other arguments than __init__ does, so the chain must be known.
                return _without_first(_signature(method.args)) if plain and chain is not None else None
    return None if chain is None else Signature()


def _method(node: ast.AST, name: str) -> ast.FunctionDef | None:
    inside = [s for s in flattened(getattr(node, "body", [])) if isinstance(s, ast.FunctionDef) and s.name == name]
    return inside[-1] if inside else None


def _has_call(found: Definition, lookup: Lookup) -> bool | None:
    chain = lookup.bases(found)
    if chain is None:
        return None
    if any("dataclass" not in _decorators(d) and _decorators(d) - _SAME_SIGNATURE for d in chain):
        return None
    member = lookup.member(found, "__call__")
    if isinstance(member, Definition):
        return True
    assigned = any("__call__" in ast.dump(s) for d in chain for s in d.node.body if not isinstance(s, ast.FunctionDef))
    return None if assigned else False


def _decorators(definition: Definition) -> set[str]:
    return {_last_word(decorator) for decorator in definition.node.decorator_list}


def _dataclass_signature(chain: list[Definition]) -> Signature | None:
    fields: dict[str, Parameter] = {}
    for definition in reversed(chain):
        if "dataclass" not in _decorators(definition):
            if _method(definition.node, "__init__") is not None:
                return None
            continue
        for statement in definition.node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            annotation = ast.unparse(statement.annotation)
            if not annotation.endswith("KW_ONLY") and "ClassVar" not in annotation and _in_init(statement.value):
                name, has_default = statement.target.id, _has_default(statement.value)
                # By keyword is how a config gives them, so the order, and a default before none, do not matter.
                fields[name] = _parameter(name, Parameter.KEYWORD_ONLY, has_default=has_default)
    return Signature(list(fields.values()))


def _field_call(value: ast.expr | None) -> ast.Call | None:
    return value if isinstance(value, ast.Call) and _last_word(value) == "field" else None


def _in_init(value: ast.expr | None) -> bool:
    call = _field_call(value)
    return call is None or not any(
        k.arg == "init" and isinstance(k.value, ast.Constant) and k.value.value is False for k in call.keywords
    )


def _has_default(value: ast.expr | None) -> bool:
    call = _field_call(value)
    if call is not None:
        return any(keyword.arg in {"default", "default_factory"} for keyword in call.keywords)
    return value is not None


_WITHOUT_SIGNATURE: Final = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
"""Classes in C that tell their signature only from Python 3.13 on; their Python twins take keywords, they do not."""

_POSITIONAL: Final = Signature(
    [Parameter("item", Parameter.POSITIONAL_ONLY), Parameter("items", Parameter.VAR_POSITIONAL)]
)


def callee_of_object(target: object) -> Callee:
    """The same of an object that is there already."""
    once = inspect.isclass(target) or (inspect.isroutine(target) and inspect.isclass(getattr(target, "__self__", None)))
    has_call = _class_has_call(target)
    try:
        signature = inspect.signature(target) if callable(target) else None
    except (ValueError, TypeError):
        signature = _POSITIONAL if target in _WITHOUT_SIGNATURE else None
    return Callee(Kind.ONCE if once else Kind.FUNCTION, signature, has_call)


def _class_has_call(target: object) -> bool | None:
    if not inspect.isclass(target):
        return None
    return any("__call__" in vars(base) for base in target.__mro__)
