"""A function is told from another that does something else, and not from one that does the same."""

import functools
import operator
import sys
import types

import numpy as np
import pytest

from stagepipe.fingerprint import compute_fingerprint, describe_fingerprint

FACTOR = 2


def load(source, name="ops"):
    """Return a module with this source."""
    module = types.ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), vars(module))
    return module


def digest(value):
    return compute_fingerprint(value).digest


def lines(value):
    return describe_fingerprint(compute_fingerprint(value), "f")


def differing_labels(first, second):
    first_lines, second_lines = lines(first), lines(second)
    paths = {*first_lines, *second_lines}
    return {path.removeprefix("f: ") for path in paths if first_lines.get(path) != second_lines.get(path)}


def adder(amount):
    return lambda number: number + amount


@pytest.mark.parametrize(
    "first, second, label",
    [
        ("f = lambda x: x * 1000", "f = lambda x: x * 2000", "constants"),
        ("f = lambda x: x + 1", "f = lambda x: x - 1", "code"),
        ("def f(x, k=1): return x", "def f(x, k=2): return x", "default `k`"),
        ("def f(x, *, k=1): return x", "def f(x, *, k=2): return x", "default `k`"),
        ("A = 1\ndef f(x): return x + A", "A = 2\ndef f(x): return x + A", "global `A`"),
        ("def f(x): return [1000 * i for i in x]", "def f(x): return [2000 * i for i in x]", "constants"),
        (
            "def g(x): return x + 1000\ndef f(x): return g(x)",
            "def g(x): return x + 2000\ndef f(x): return g(x)",
            "global `g`: constants",
        ),
        (
            "def f(x):\n def g(y): return y + 1000\n return g(x)",
            "def f(x):\n def g(y): return y + 2000\n return g(x)",
            "constants",
        ),
        ("def f(x): return x.a", "def f(x): return x.b", "code"),
        ("def f(x): return len(x)", "def f(x): return max(x)", "code"),
        ("def f(x): return x", "def f(x): yield x", "code"),
        ("def f(x):\n try: x()\n except OSError: pass", "def f(x):\n try: x()\n except KeyError: pass", "code"),
        ("import json as m\ndef f(x): return m.x", "import math as m\ndef f(x): return m.x", "global `m`"),
        ("def f(a, b=1): return g(a=a)", "def f(a, b=1): return g(b=a)", "code|constants"),
    ],
)
def test_functions_that_differ(first, second, label):
    assert differing_labels(load(first).f, load(second).f) & set(label.split("|"))


@pytest.mark.parametrize(
    "first, second",
    [
        ("def f(x): return x + 1", "\n\n\ndef f(x):\n    # a comment\n    return (x + 1)"),
        ('def f(x):\n "One."\n return x + 1', 'def f(x):\n "Another."\n return x + 1'),
        ("def f(x): return x", "def f(x: int) -> int: return x"),
        ("B = 1\nA = 2\ndef f(x): return A + B", "A = 2\nB = 1\nC = 3\ndef f(x): return A + B"),
        ("def f(x):\n class A:\n  a = 1\n return A", "\n\ndef f(x):\n class A:\n  a = 1\n return A"),
    ],
    ids=["layout", "docstring", "annotations", "unrelated globals", "nested class"],
)
def test_functions_that_do_the_same(first, second):
    assert digest(load(first, "one").f) == digest(load(second, "two").f)


def test_closure_values_count():
    assert digest(adder(1)) == digest(adder(1)) != digest(adder(2))
    assert differing_labels(adder(1), adder(2)) == {"closure value `amount`"}
    assert lines(adder(224))["f: closure value `amount`"] == "224"


def test_a_cell_that_is_not_set_is_a_value():
    def f():
        return later

    before = digest(f)
    later = 1
    assert before != digest(f)


def test_partials_and_bound_methods_count_with_arguments_and_objects():
    assert differing_labels(functools.partial(adder, 1), functools.partial(adder, 2)) == {"argument 0"}
    assert differing_labels(functools.partial(adder, amount=1), functools.partial(adder, amount=2)) == {
        "argument `amount`"
    }
    source = "class A:\n def __init__(self, size): self.size = size\n def f(self, x): return x * self.size"
    module = load(source)
    assert differing_labels(module.A(1).f, module.A(2).f) == {"object: attribute `size`"}
    assert differing_labels(functools.lru_cache(adder(1)), functools.lru_cache(adder(2))) == {
        "function: closure value `amount`"
    }


def test_decorated_functions_are_looked_through():
    source = """
import functools
def decorate(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper
@decorate
def f(x): return x + NUMBER
"""
    first, second = (load(source.replace("NUMBER", number)).f for number in ("1000", "2000"))
    assert differing_labels(first, second) == {"closure value `function`: constants"}


def test_functions_that_call_each_other_and_themselves():
    source = "def f(x): return g(x - 1) if x else f(x)\ndef g(x): return f(x - {number})"
    first, same, other = (load(source.format(number=number)).f for number in (1000, 1000, 2000))
    assert digest(first) == digest(same) != digest(other)


def test_calls_beyond_the_depth_limit_count_by_name_and_do_not_fail():
    source = "\n".join(f"def f{number}(x): return f{number + 1}(x)" for number in range(200))
    fingerprint = compute_fingerprint(load(source).f0)
    assert fingerprint.unknown is None


def test_installed_functions_count_by_name():
    assert lines(np.sum) == {"f": "numpy.sum"}
    assert lines(np.add) == {"f": "numpy.add"}
    assert lines(len) == {"f": "builtins.len"}
    assert lines(functools.wraps) == {"f": "functools.wraps"}


def test_a_closure_of_an_installed_package_counts_with_its_values_and_not_its_code():
    def make(number):
        return functools.singledispatch(lambda x: x + number)

    assert not any("code" in path and "closure" not in path for path in lines(make(1)))
    assert digest(operator.itemgetter(1)) != digest(operator.itemgetter(2))


def test_attributes_of_own_modules_are_followed(monkeypatch):
    settings = load("SIZE = 1", "own_settings")
    monkeypatch.setitem(sys.modules, "own_settings", settings)
    f = load("import own_settings\ndef f(x): return x * own_settings.SIZE").f
    first = lines(f)
    settings.SIZE = 2
    assert first["f: global `own_settings.SIZE`"] == "1"
    assert lines(f)["f: global `own_settings.SIZE`"] == "2"


def test_a_lock_in_a_module_does_not_refuse_a_function_that_can_be_imported(monkeypatch):
    source = "import threading\nLOCK = threading.Lock()\ndef f(x):\n with LOCK: return x"
    module = load(source, "own_ops")
    assert compute_fingerprint(module.f).unknown.path == "global `LOCK`", "it is sent with its globals"
    monkeypatch.setitem(sys.modules, "own_ops", module)
    assert compute_fingerprint(module.f).unknown is None, "it is sent by name"


def test_running_a_function_does_not_change_it():
    f = load("def f(x):\n s = 0\n for i in x: s += i * 1000\n return s").f
    before = digest(f)
    for _ in range(1000):  # the interpreter specializes the bytecode
        f([1, 2])
    sys.settrace(lambda *_: None)
    try:
        f([1.0])
        traced = digest(f)
    finally:
        sys.settrace(None)
    assert before == digest(f) == traced


def test_globals_that_are_missing_are_named():
    assert lines(load("def f(x): return nowhere").f)["f: global `nowhere`"] == "not set"


def test_global_constant_of_this_module(monkeypatch):
    def f(number):
        return number * FACTOR

    before = lines(f)
    monkeypatch.setitem(f.__globals__, "FACTOR", 3)
    assert before["f: global `FACTOR`"] == "2"
    assert lines(f)["f: global `FACTOR`"] == "3"
