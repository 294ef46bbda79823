"""Reads a code object: instructions, constants and the names of globals, without lines, files and docstrings. Pure."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

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
    """What a code object does, with the code nested in it: functions, lambdas and comprehensions.

    `instructions` is text without constants; these stand in `constants`, in the order of their use. `global_names` and
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
    for instruction in _iter_instructions(code):
        _add_instruction(instruction, code, content)
    content.instructions.append("end")


def _iter_instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Iterate over the instructions, without those that store the line of a nested class (Python 3.13)."""
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.argval == "__firstlineno__":
            previous = None
            continue
        if previous is not None:
            yield previous
        previous = instruction
    if previous is not None:
        yield previous


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
