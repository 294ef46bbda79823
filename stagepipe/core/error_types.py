"""Gives a RunError the type of the exception that caused it, from the type's name. In the process that iterates.

A worker sends the name of the type as text. Here it is looked up among the modules that are imported already: nothing
is imported, unpickled or called, and the exception is made without the `__init__` of its type.
"""

from __future__ import annotations

import sys
from types import BuiltinMethodType
from typing import Any, Final

from stagepipe.core.errors import RunError, StagepipeError

_MAX_NAME_CHARS: Final = 500
"""Characters of a type's name; a longer one is sent as no name."""

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
    cls = type(error)
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if len(name) <= _MAX_NAME_CHARS and name.isprintable() and find_error_type(name) is cls else ""


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
    """
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
