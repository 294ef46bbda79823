"""A stage that cannot be sent to a worker is named, with the variable, attribute or argument that is the reason."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stagepipe.plan import StagePlan
from stagepipe.runtime.protocol.worker_spec import find_unpicklable_stage
from stagepipe.spec import Target

LOCK = threading.Lock()


class Holder:
    def __init__(self) -> None:
        self.lock = LOCK

    def method(self, item: Any) -> Any:
        return item


class Outer:
    def __init__(self) -> None:
        self.inner = {"deep": [Holder()]}


def with_default(item: Any, lock: Any = None) -> Any:
    return item, lock


def make_closure(value: Any) -> Callable[[Any], Any]:
    def guarded(item: Any) -> Any:
        return value, item

    return guarded


def error_of(uses: Any, arguments: dict[str, Any] | None = None, name: str = "r") -> str:
    good = StagePlan(name="good", target=Target("my_ops.decode"))
    return str(find_unpicklable_stage([good, StagePlan(name=name, target=Target(uses, arguments or {}))]))


@pytest.mark.parametrize(
    "uses,part",
    [
        (make_closure(LOCK), "the variable `value` of guarded (lock)"),
        (make_closure(make_closure(LOCK)), "the variable `value` of guarded (lock)"),
        (lambda item, lock=LOCK: (item, lock), "a default value of lambda (lock)"),
        (Holder(), "the attribute `lock` (lock)"),
        (Holder().method, "the attribute `lock` (lock)"),
        (Outer(), "the attribute `lock` (lock)"),
        (functools.partial(with_default, lock=LOCK), "`lock` (lock)"),
    ],
    ids=["closure", "closure in a closure", "default", "instance", "method", "nested", "partial"],
)
def test_the_part_is_named(uses, part):
    assert error_of(uses) == (
        f"stage r: {part} cannot be sent to a worker: TypeError: cannot pickle '_thread.lock' object; create it in "
        "the worker: in the function, at the first `__getitem__` of a dataset, or in a class that each worker builds"
    )


def test_an_argument_is_named():
    assert error_of("my_ops.crop", {"lock": LOCK}).startswith("stage r: `lock` (lock) cannot be sent to a worker")


def test_the_source_is_named():
    assert error_of(make_closure(LOCK), name="source").startswith("source: the variable `value` of guarded")


def test_there_is_no_error_where_all_can_be_sent():
    assert find_unpicklable_stage([StagePlan(name="r", target=Target(make_closure(3)))]) is None
