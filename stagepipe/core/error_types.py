"""Gives a RunError the type of the exception that caused it, from the type's name. In the process that iterates.

A worker sends the name of the type as text. Here it is looked up among the modules that are imported already: nothing
is imported, unpickled or called, and the exception is made without the `__init__` of its type.
"""

from __future__ import annotations

import json
import sys
from types import BuiltinMethodType
from typing import Any, Final

from stagepipe.core.errors import RunError, StagepipeError

_MAX_NAME_CHARS: Final = 500
"""Characters of a type's name; a longer one is sent as no name."""

_MAX_MEMBERS: Final = 20
"""Exceptions of a group that are sent with it, and levels of groups in groups."""

_MAX_MEMBER_TEXT_CHARS: Final = 1000

_FIELDS: Final = ("message", "stage", "worker", "item", "trace")
"""The attributes of a RunError."""

_NAME_ATTRIBUTE: Final = "_error_type"
"""The attribute of a made class that holds the name of the user's type."""

_OWN_METHODS: Final = ("__str__", "__repr__", "__eq__", "__hash__")
"""Methods that stay RunError's: those of the user's type may read attributes that its `__init__` would have set."""


def name_error_type(error: BaseException) -> str:
    """Return the name under which `find_error_type` finds the type of `error`; "" for a type that keeps plain RunError.

    >>> name_error_type(KeyError("x")), name_error_type(KeyboardInterrupt())
    ('builtins:KeyError', '')
    """
    name = _name_type(type(error))
    return json.dumps(_describe_group(name, error)) if name and isinstance(error, ExceptionGroup) else name


def _name_type(cls: type[BaseException]) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if len(name) <= _MAX_NAME_CHARS and name.isprintable() and find_error_type(name) is cls else ""


def _describe_group(name: str, group: ExceptionGroup[Exception], depth: int = 0) -> list[Any]:
    """Return the type of a group and its first exceptions, each with type and text, to be written as JSON."""
    members: list[Any] = []
    for member in group.exceptions[:_MAX_MEMBERS]:
        own_name, text = _name_type(type(member)), _read_text(member)
        is_group = isinstance(member, ExceptionGroup) and own_name and depth < _MAX_MEMBERS
        members.append([_describe_group(own_name, member, depth + 1) if is_group else own_name, text])  # type: ignore[arg-type]
    return [name, members]


def _read_text(error: BaseException) -> str:
    try:
        text = str(error)[:_MAX_MEMBER_TEXT_CHARS]
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        return ""
    return text.encode(errors="backslashreplace").decode()


def find_error_type(name: str) -> type[Exception] | None:
    """Return the exception type that an imported module defines under `name`, or None.

    None too for our own errors, and for those that the interpreter acts on: StopIteration and StopAsyncIteration would
    end the caller's loop, and GeneratorExit, KeyboardInterrupt and SystemExit, which are no `Exception`, the program.

    >>> find_error_type("builtins:LookupError"), find_error_type("builtins:StopIteration")
    (<class 'LookupError'>, None)
    """
    module_name, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # no attribute access: it could run code
    is_usable = isinstance(found, type) and issubclass(found, Exception)
    is_reserved = is_usable and issubclass(found, StopIteration | StopAsyncIteration | StagepipeError)
    return found if is_usable and not is_reserved else None


def with_error_type(error: RunError, name: str) -> RunError:
    """Return `error` as an instance of RunError and of the exception type `name`; `error` itself where that fails.

    >>> typed = with_error_type(RunError("no entry", stage="decode"), "builtins:KeyError")
    >>> isinstance(typed, KeyError), isinstance(typed, RunError), str(typed), typed.stage
    (True, True, 'no entry', 'decode')

    A group of exceptions is one again: `except* KeyError` finds those of its exceptions.

    >>> name = name_error_type(ExceptionGroup("two", [KeyError("a"), OSError("b")]))
    >>> [str(member) for member in with_error_type(RunError("two"), name).exceptions]
    ["'a'", 'b']
    """
    if name.startswith("["):
        return _make_group(error, json.loads(name)) or error
    cause_type = find_error_type(name) if name else None
    if cause_type is None or any(hasattr(getattr(cause_type, field, None), "__set__") for field in _FIELDS):
        return error
    try:
        typed = _make_instance(_make_class(cause_type, name))
        typed.args = error.args
        typed.__dict__.update(error.__dict__)
    except Exception:  # noqa: BLE001 - a type that cannot be subclassed, or whose metaclass raises
        return error
    return typed


def _make_group(error: RunError, description: list[Any]) -> RunError | None:
    """Return `error` as a group too; None where that fails."""
    name, members = description
    cause_type = find_error_type(name)
    if cause_type is None or not issubclass(cause_type, ExceptionGroup):
        return None
    inner = []
    for member_description, text in members:
        member = RunError(text, stage=error.stage, worker=error.worker, item=error.item)
        is_group = not isinstance(member_description, str)
        typed = _make_group(member, member_description) if is_group else with_error_type(member, member_description)
        inner.append(typed or member)
    try:
        cls: Any = _make_class(cause_type, json.dumps(description))
        group = BaseExceptionGroup.__new__(cls, error.message, inner)
        group.args = error.args
        group.__dict__.update(error.__dict__)
    except Exception:  # noqa: BLE001 - as above
        return None
    return group  # type: ignore[no-any-return]


def get_error_type(error: RunError) -> str:
    """Return the name that `with_error_type` gave an error; "" for a plain RunError."""
    return str(vars(type(error)).get(_NAME_ATTRIBUTE, ""))


def _make_class(cause_type: type[Exception], name: str) -> type[RunError]:
    namespace: dict[str, Any] = {own: getattr(RunError, own) for own in _OWN_METHODS}
    namespace |= {"__module__": RunError.__module__, "__reduce__": _reduce, _NAME_ATTRIBUTE: name}
    return type(f"RunError[{cause_type.__name__}]", (RunError, cause_type), namespace)


def _make_instance(cls: type[RunError]) -> RunError:
    """Make an instance by the `__new__` of the builtin exception below the user's type."""
    bases = (base for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), BuiltinMethodType))
    make: Any = next(bases).__new__
    instance: RunError = make(cls)
    return instance


def _reduce(error: RunError) -> tuple[Any, ...]:
    return _restore, (get_error_type(error), error.args, dict(error.__dict__))


def _restore(name: str, args: tuple[Any, ...], attributes: dict[str, Any]) -> RunError:
    """Unpickle: the type by its name again, a plain RunError in a process that has not imported it."""
    error = RunError("")
    error.args = args
    error.__dict__.update(attributes)
    return with_error_type(error, name)
