"""Builds the fingerprint of any value, one function per kind of value: code, containers, objects."""

from __future__ import annotations

import builtins
import copyreg
import dis
import enum
import inspect
import itertools
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from inspect import getattr_static
from pathlib import PurePath
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import numpy as np

from stagepipe.core import SCRIPT_MODULES, get_recorded_module, is_installed, is_tensor
from stagepipe.fingerprint.model import (
    MAX_TEXT_CHARS,
    Build,
    Fingerprint,
    make_composite,
    make_exact,
    make_opaque,
    make_unknown,
)


def is_importable(definition: Any) -> bool:
    """Whether a function or class can be imported by its name, so that it travels to workers by name.

    >>> import json
    >>> is_importable(json.dumps), is_importable(lambda: 0)
    (True, False)
    """
    if definition.__module__ is None or definition.__module__ in SCRIPT_MODULES:
        return False
    found: Any = sys.modules.get(definition.__module__)
    for name in definition.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is definition


def get_display_name(value: Any) -> str:
    """Return the name of a function or class, or of an object's class, with the module if it is installed.

    >>> import json
    >>> get_display_name(json.dumps), get_display_name([])
    ('json.dumps', 'list')
    """
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__name__") else type(value)
    module = getattr(definition, "__module__", None) or ""
    if module == "builtins":
        return str(definition.__qualname__)
    if module and is_installed(module):
        return f"{get_recorded_module(module, definition.__qualname__)}.{definition.__qualname__}"
    return str(definition.__name__)


_BEHAVIOUR_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_GLOBAL_OPERATIONS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE_OPERATIONS = {"LOAD_ATTR", "LOAD_METHOD"}


@dataclass
class CodeContent:
    """The behaviour of a code object, including nested code: functions, lambdas and comprehensions.

    `instructions` is text without constants; `constants` has these in the order of their use. `global_names` and
    `attribute_names` are the names that the code reads.
    """

    instructions: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    global_names: set[str] = field(default_factory=set)
    attribute_names: set[str] = field(default_factory=set)


def read_code(code: CodeType) -> CodeContent:
    """Read `code` and the code nested in it.

    >>> content = read_code((lambda items: [scale * 3 for scale in items]).__code__)
    >>> 3 in content.constants
    True
    """
    content = CodeContent()
    _add_code(code, content)
    return content


def _add_code(code: CodeType, content: CodeContent) -> None:
    parameter_count = code.co_argcount + code.co_kwonlyargcount
    parameter_count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _BEHAVIOUR_FLAGS
    names = code.co_varnames[:parameter_count], code.co_freevars, code.co_cellvars
    content.instructions.append(f"code {counts} {names} {code.co_exceptiontable.hex()}")
    instructions = list(dis.get_instructions(code))
    for instruction, following in itertools.zip_longest(instructions, instructions[1:]):
        # Python 3.13 stores the line of a nested class: two instructions.
        if "__firstlineno__" not in (instruction.argval, following and following.argval):
            _add_instruction(instruction, code, content)
    content.instructions.append("end")


def _add_instruction(instruction: dis.Instruction, code: CodeType, content: CodeContent) -> None:
    name, value = instruction.opname, instruction.argval
    is_constant = instruction.opcode in dis.hasconst or name == "LOAD_SMALL_INT"
    if instruction.opcode in dis.hasconst and instruction.arg is not None:
        value = code.co_consts[instruction.arg]
    if isinstance(value, CodeType):
        content.instructions.append(name)
        _add_code(value, content)
    elif is_constant and value is not None and value is not ... and name != "KW_NAMES":
        content.instructions.append(name)
        content.constants.append(value)
    else:
        operand = value if is_constant or isinstance(value, str) else instruction.arg
        content.instructions.append(f"{name} {operand}")
    if name in _GLOBAL_OPERATIONS:
        content.global_names.add(value)
    elif name in _ATTRIBUTE_OPERATIONS:
        content.attribute_names.add(value)


_MISSING = object()


def fingerprint_function(function: FunctionType, build: Build) -> Fingerprint:
    """Return the fingerprint of a function. Its code and globals count unless an installed package has it."""
    home = str(function.__globals__.get("__name__", function.__module__))
    if not is_installed(home):
        return make_composite("function", function.__name__, _iter_function_parts(function, build))
    name = f"{get_recorded_module(home, function.__qualname__)}.{function.__qualname__}"
    if is_importable(function):
        return make_exact("function", name)
    return make_composite("installed function", name, _iter_context(function, build))


def fingerprint_method(value: MethodType, build: Build) -> Fingerprint:
    """Return the fingerprint of a bound method: its function and its object."""
    return make_composite(
        "method", value.__name__, [("method", build(value.__func__)), ("object", build(value.__self__))]
    )


def fingerprint_partial(value: partial[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a partial: its function and its arguments."""
    arguments = [(f"argument {number}", build(argument)) for number, argument in enumerate(value.args)]
    keywords = [(f"argument `{name}`", build(argument)) for name, argument in sorted(value.keywords.items())]
    return make_composite("partial", "partial", [("function", build(value.func)), *arguments, *keywords])


def fingerprint_wrapper(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of an object around a function: a static or class method, an `lru_cache`."""
    return make_composite("wrapper", type(value).__name__, [("function", build(value.__wrapped__))])


def fingerprint_property(value: property | cached_property[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a property: its functions."""
    names = ("fget", "fset", "fdel") if isinstance(value, property) else ("func",)
    return make_composite("property", "property", [(name, build(getattr(value, name))) for name in names])


def fingerprint_leniently(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of a value that is not sent to workers; the name of its type if it has no fingerprint."""
    result = build(value)
    return result if result.unknown is None else make_exact("type", get_display_name(type(value)))


def _iter_function_parts(function: FunctionType, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    content = read_code(function.__code__)
    instructions = "\n".join(content.instructions).encode("utf-8", "surrogatepass")
    yield "code", make_opaque("code", "", instructions, has_bytecode=True)
    if content.constants:
        yield "constants", build(content.constants)
    yield from _iter_context(function, build)
    yield from _iter_globals(function, content, build)


def _iter_context(function: FunctionType, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the parts that a function object adds to its code: defaults, closure values and attributes."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    positional_names = code.co_varnames[: code.co_argcount]
    for name, value in zip(positional_names[len(positional_names) - len(defaults) :], defaults, strict=True):
        yield f"default `{name}`", build(value)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default `{name}`", build(value)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure value `{name}`", _fingerprint_cell(cell, build)
    for name, value in sorted(function.__dict__.items()):
        if name != "__wrapped__":  # the closure has it, if the function calls it
            yield f"attribute `{name}`", build(value)


def _fingerprint_cell(cell: CellType, build: Build) -> Fingerprint:
    try:
        return build(cell.cell_contents)
    except ValueError:
        return make_exact("cell", "not set")


def _iter_globals(function: FunctionType, content: CodeContent, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    is_sent_by_name = is_importable(function)
    for name in sorted(name for name in content.global_names if not name.startswith("__")):  # `__file__`, `__name__`
        value = function.__globals__.get(name, _MISSING)
        if value is function:
            continue
        if value is _MISSING:
            if not hasattr(builtins, name):
                yield f"global `{name}`", make_exact("global", "not set")
        elif isinstance(value, ModuleType):
            yield f"global `{name}`", build(value)
            yield from _iter_module_attributes(name, value, content, build)
        elif is_sent_by_name:
            yield f"global `{name}`", fingerprint_leniently(value, build)
        else:
            yield f"global `{name}`", build(value)


def _iter_module_attributes(
    name: str, module: ModuleType, content: CodeContent, build: Build
) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the attributes that the code may read from a module that is not installed: `settings.SIZE`."""
    if not is_installed(module.__name__):
        for attribute in sorted(content.attribute_names & vars(module).keys()):
            yield f"global `{name}.{attribute}`", fingerprint_leniently(vars(module)[attribute], build)


SCALAR_TYPES: Final = frozenset({NoneType, type(...), bool, int, float, complex, str, bytes, range})
"""Types whose `repr` shows the value and the type."""

_MAX_SHOWN_ENTRIES: Final = 12
"""A larger dict of numbers and strings is compared as a whole, which is fast."""

_MAX_SHOWN_BITS: Final = 300
"""Longer integers are shown in hexadecimal: Python does not write thousands of digits in decimal."""


def fingerprint_scalar(value: Any) -> Fingerprint:
    """Return the fingerprint of a value of one of `SCALAR_TYPES`."""
    is_long = type(value) is int and value.bit_length() > _MAX_SHOWN_BITS
    return make_exact(type(value).__name__, hex(value) if is_long else repr(value))


def fingerprint_sequence(value: list[Any] | tuple[Any, ...], build: Build) -> Fingerprint:
    """Return the fingerprint of a list or tuple."""
    name = type(value).__name__
    if (flat_text := _get_flat_text(value)) is not None:
        return make_exact(name, flat_text)
    parts = [(f"element {number}", "", build(element)) for number, element in enumerate(value)]
    return _make_container(name, "[%s]" if name == "list" else "(%s)", parts)


def fingerprint_dict(value: dict[Any, Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a dict. The order of its keys does not count, as in `==`."""
    flat_text = _get_flat_text([value])
    if flat_text is not None and (len(value) > _MAX_SHOWN_ENTRIES or len(flat_text) < MAX_TEXT_CHARS):
        return make_exact("dict", flat_text[1:-1])
    keys = sorted(((build(key), key) for key in value), key=lambda pair: pair[0].digest)
    parts = [(f"key {key.text}", f"{key.text}: ", build(value[original])) for key, original in keys]
    if not all(key.is_exact for key, _ in keys):  # then their texts do not tell them apart
        parts = [(f"{label} {number}", prefix, part) for number, (label, prefix, part) in enumerate(parts)]
        parts += [(f"key {number}", "", key) for number, (key, _) in enumerate(keys)]
    return _make_container("dict", "{%s}", parts)


def fingerprint_ordered_dict(value: OrderedDict[Any, Any], build: Build) -> Fingerprint:
    """Return the fingerprint of an OrderedDict, whose order counts. A torch module has a dozen empty ones."""
    if not value:
        return make_exact("OrderedDict", "OrderedDict()")
    return make_composite("OrderedDict", "OrderedDict", [("entries", build(list(value.items())))])


def fingerprint_set(value: set[Any] | frozenset[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a set, whose order depends on the process."""
    elements = sorted(map(build, value), key=lambda element: element.digest)
    name = type(value).__name__
    parts = [(f"element {number}", "", part) for number, part in enumerate(elements)]
    return _make_container(name, "{%s}" if value and name == "set" else f"{name}(%s)", parts)


def fingerprint_array(value: np.ndarray, build: Build) -> Fingerprint:
    """Return the fingerprint of an array: dtype, shape and content. The byte order does not count, as in pickle."""
    dtype = value.dtype.newbyteorder("=")
    text = f"ndarray {dtype} {value.shape}"
    if dtype.hasobject:
        return make_composite("array", text, [("elements", build(value.tolist()))])
    native = np.ascontiguousarray(value, dtype)
    return make_opaque("array", text, native.reshape(-1).view(np.uint8).data)


def fingerprint_tensor(tensor: Any) -> Fingerprint:
    """Return the fingerprint of a dense tensor, from its bytes on the CPU. The device does not count."""
    torch = sys.modules["torch"]
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    text = f"{get_display_name(type(tensor))} {tensor.dtype} {tuple(tensor.shape)}"
    return make_opaque("tensor", text, dense.view(torch.uint8).numpy().data)


def _get_flat_text(value: Collection[Any]) -> str | None:
    """Return the `repr` of a collection of numbers and strings, or of tuples or dicts of them, sorted by key.

    Return None for other collections, and if a number is so long that Python refuses to write it. A million entries
    take about two seconds.
    """
    types = set(map(type, value))
    rows: Any = value
    if types == {dict} and set(map(type, itertools.chain.from_iterable(value))) == {str}:
        rows = [dict(sorted(entry.items())) for entry in value]
        types = set(map(type, itertools.chain.from_iterable(map(dict.values, rows))))
    elif types == {tuple}:
        types = set(map(type, itertools.chain.from_iterable(value)))
    if types <= SCALAR_TYPES:
        with suppress(ValueError):
            return repr(rows)
    return None


def _make_container(kind: str, template: str, parts: list[tuple[str, str, Fingerprint]]) -> Fingerprint:
    """Return the fingerprint of a container from the label, the prefix and the fingerprint of each part.

    It is exact if its parts are exact and short in all; `template` is then the text around them.
    """
    if all(part.is_exact for _, _, part in parts) and len(parts) < MAX_TEXT_CHARS:
        text = ", ".join(prefix + part.text for _, prefix, part in parts)
        if len(text) + len(template) <= MAX_TEXT_CHARS:
            return make_exact(kind, template % text)
    return make_composite(kind, f"{kind} of {len(parts)}", [(label, part) for label, _, part in parts])


_DESCRIPTOR_TYPES = (GetSetDescriptorType, MemberDescriptorType)
_METHOD_TYPES = (FunctionType, staticmethod, classmethod, property, cached_property)
_HEAP_TYPE_FLAG = 1 << 9
"""Set on classes that a `class` statement makes. https://docs.python.org/3/c-api/typeobj.html"""


def fingerprint_class(cls: type, build: Build) -> Fingerprint:
    """Return the fingerprint of a class. Its content counts unless the class belongs to an installed package."""
    if is_library_class(cls):
        return make_exact("class", get_display_name(cls))
    return make_composite("class", cls.__name__, _iter_class_parts(cls, build))


def is_library_class(cls: type) -> bool:
    """Whether `cls` is written in C or belongs to an installed package: it changes only with its version."""
    return not cls.__flags__ & _HEAP_TYPE_FLAG or (is_installed(cls.__module__) and is_importable(cls))


def _iter_class_parts(cls: type, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    for number, base in enumerate(cls.__bases__):
        if base is not object:
            yield f"base {number}", build(base)
    if type(cls) is not type:
        yield "metaclass", build(type(cls))
    if is_importable(cls):
        build = partial(fingerprint_leniently, build=build)
    members = cls.__members__ if issubclass(cls, enum.Enum) else {}
    for name, member in members.items():
        yield f"member `{name}`", build(member.value)
    for name, value in sorted(vars(cls).items()):
        if name.startswith("__annotate"):  # Python 3.14 computes annotations in a method
            continue
        if isinstance(value, _METHOD_TYPES):
            yield f"method `{name}`", build(value)
        elif not members and not _is_bookkeeping(name, value):
            yield f"class attribute `{name}`", build(value)


def _is_bookkeeping(name: str, value: Any) -> bool:
    """Whether an entry of a class is for Python's own use: `__doc__`, slots."""
    is_dunder = name.startswith("__") and name.endswith("__")
    return is_dunder or name == "_abc_impl" or isinstance(value, _DESCRIPTOR_TYPES)


_PICKLE_PROTOCOL: Final = 4
"""The protocol of `__reduce_ex__`. From 5 on, a reduced value may omit its buffers."""


def fingerprint_object(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of an object: its class, and the state that pickle sees. Raises what pickle raises."""
    reducer = copyreg.dispatch_table.get(type(value))
    reduced: Any = value.__reduce_ex__(_PICKLE_PROTOCOL) if reducer is None else reducer(value)
    if isinstance(reduced, str):
        modules = list(sys.modules.values())
        if "." not in reduced and not any(getattr(module, "__dict__", {}).get(reduced) is value for module in modules):
            # For instance the result of `numpy.frompyfunc`.
            return make_unknown(f"{get_display_name(type(value))} `{reduced}` cannot be imported")
        return make_exact("global", f"{getattr(value, '__module__', '')}.{reduced}")
    constructor, arguments, state, elements, entries = (*reduced, None, None, None)[:5]
    parts = list(_iter_class(value, build))
    if getattr(constructor, "__name__", "") == "__newobj__":  # `object.__reduce_ex__`: the class is the first argument
        arguments = arguments[1:]
    elif constructor is not type(value):
        parts.append(("constructor", build(constructor)))
    parts += [(f"argument {number}", build(argument)) for number, argument in enumerate(arguments)]
    parts += _iter_state(value, state, build)
    if elements is not None:
        parts.append(("elements", build(list(elements))))
    if entries is not None:
        parts.append(("entries", build(dict(entries))))
    return make_composite("object", get_display_name(type(value)), parts)


def fingerprint_member(value: enum.Enum, build: Build) -> Fingerprint:
    """Return the fingerprint of a member of an enum."""
    name = f"{get_display_name(type(value))}.{value.name}"
    parts = list(_iter_class(value, build))
    return make_composite("enum", name, [("value", build(value.value)), *parts]) if parts else make_exact("enum", name)


def iter_attributes(attributes: Mapping[str, Any], build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the attributes of an object by name."""
    for name, value in sorted(attributes.items()):
        yield f"attribute `{name}`", build(value)


def _iter_class(value: Any, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    if not is_library_class(type(value)):
        yield "class", build(type(value))


def _iter_state(value: Any, state: Any, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the attributes of an object: a dict, or a pair of dicts where the class has slots."""
    match state:
        case (None | dict() as attributes, dict() as slots):
            state = {**(attributes or {}), **slots}
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        computed = {name for name in state if isinstance(getattr_static(type(value), name, None), cached_property)}
        yield from iter_attributes({name: inner for name, inner in state.items() if name not in computed}, build)
    elif state is not None:
        yield "state", build(state)


_MAX_DEPTH: Final = 60
"""Maximum nesting of values. A level takes at most eight Python calls; Python allows a thousand."""

_MAX_CODE_DEPTH: Final = 30
"""Maximum nesting at which the code of functions and classes counts. Deeper ones count by name."""

_FUNCTIONS: Final[dict[type, Callable[[Any, Build], Fingerprint]]] = {
    list: fingerprint_sequence,
    tuple: fingerprint_sequence,
    dict: fingerprint_dict,
    OrderedDict: fingerprint_ordered_dict,
    set: fingerprint_set,
    frozenset: fingerprint_set,
    np.ndarray: fingerprint_array,
    np.memmap: fingerprint_array,
    FunctionType: fingerprint_function,
    MethodType: fingerprint_method,
    partial: fingerprint_partial,
    staticmethod: fingerprint_wrapper,
    classmethod: fingerprint_wrapper,
    type(lru_cache(len)): fingerprint_wrapper,
    property: fingerprint_property,
    cached_property: fingerprint_property,
}


def compute_fingerprint(value: Any) -> Fingerprint:
    """Return the fingerprint of any value. Never raises: `unknown` names a part without a fingerprint.

    Arrays are hashed at the speed of SHA-256. Numbers and strings in a list, or in a list of tuples or dicts, take at
    most a microsecond each, other objects 20 us, a function or class of some lines 100 us.

    >>> compute_fingerprint([1, 2.0]).text
    '[1, 2.0]'
    >>> compute_fingerprint(open).digest == compute_fingerprint(print).digest
    False
    """
    return _FingerprintBuilder().build(value)


class _FingerprintBuilder:
    """Builds the fingerprint of one value and of all values in it."""

    def __init__(self) -> None:
        self._finished: dict[int, tuple[Any, Fingerprint]] = {}
        """By id. The values are kept, so that no id is reused."""
        self._open: dict[int, int] = {}
        """Depth of the values whose parts are being built, by id."""

    def build(self, value: Any) -> Fingerprint:
        """Return the fingerprint of a value. It is built once."""
        if type(value) in SCALAR_TYPES:
            return fingerprint_scalar(value)
        if id(value) in self._finished:
            return self._finished[id(value)][1]
        if id(value) in self._open:
            return make_exact("cycle", f"the object {len(self._open) - self._open[id(value)]} levels up")
        if len(self._open) >= _MAX_DEPTH:
            return make_unknown(f"nested more than {_MAX_DEPTH} levels deep")
        if len(self._open) >= _MAX_CODE_DEPTH and isinstance(value, FunctionType | type):
            return make_exact("deep code", get_display_name(value))
        self._open[id(value)] = len(self._open)
        try:
            result = _FUNCTIONS.get(type(value), _fingerprint_other)(value, self.build)
        except Exception as error:  # noqa: BLE001 - of `__reduce_ex__`, `__getstate__` or a property of any class
            name = type(value).__name__
            result = make_unknown(str(error) if name in str(error) else f"{name} object: {error}")
        finally:
            del self._open[id(value)]
        self._finished[id(value)] = (value, result)
        return result


def _fingerprint_other(value: Any, build: Build) -> Fingerprint:  # noqa: PLR0911 - a case for each kind of value
    """Return the fingerprint of a value of a type that is not listed."""
    if isinstance(value, type):
        return fingerprint_class(value, build)
    if isinstance(value, enum.Enum):
        return fingerprint_member(value, build)
    if isinstance(value, ModuleType):
        return make_exact("module", f"module {value.__name__}")
    if isinstance(value, PurePath):
        return make_exact("path", f"{type(value).__name__}({str(value)!r})")
    if isinstance(value, np.generic):
        return make_exact(str(value.dtype), repr(value))
    if isinstance(value, _get_generator_types()):
        return make_exact("generator", get_display_name(value))
    return fingerprint_tensor(value) if is_tensor(value) else fingerprint_object(value, build)


def _get_generator_types() -> tuple[type, ...]:
    """Return the types of random generators. torch's type is known only after the import of torch."""
    torch = sys.modules.get("torch")
    torch_types = () if torch is None else (torch.Generator,)
    return (random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, *torch_types)
