"""What a failure says: the user's frames only, and the place of what cannot travel."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from stagepipe.core import StagepipeError
from stagepipe.core.targets import TargetError, build
from stagepipe.runtime.failures import CannotTravelError, message_of, read_only_mend, trace_of
from stagepipe.stages import Batch

LOCK = threading.Lock()


@dataclass
class Holder:
    held: Any


def raised_by(function, *arguments, **keys):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function(*arguments, **keys)
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


@pytest.mark.parametrize(
    "value, place",
    [
        (LOCK, "_thread.lock: "),
        ({"image": 1, "lock": LOCK}, "lock (_thread.lock): "),
        ({"a": [1, (2, Holder({"x": LOCK}))]}, "a[1][1].held.x (_thread.lock): "),
        ([lambda: 1], "[0] (function): "),
    ],
)
def test_what_cannot_travel_is_named_with_the_way_to_it(value, place):
    error = CannotTravelError(value, TypeError("cannot pickle it"))
    assert str(error) == f"what it returned cannot travel to the next process: {place}TypeError: cannot pickle it"


def test_an_error_that_only_we_raised_needs_no_trace():
    batch = Batch(2)
    batch.add([1], 1)
    assert trace_of(raised_by(batch.add, [1, 2], 1)) == ""
    assert trace_of(raised_by(build, "stagepipe.sources.files", {"glob": "/no/such/*"})) == ""
    assert trace_of(raised_by(build, "no_such_package.f")) == ""
    assert trace_of(StagepipeError("never raised")) == ""


def test_a_bug_of_ours_keeps_its_trace():
    batch = Batch(2)
    batch.add([1], 1)
    batch._root = 3
    assert "in add" in trace_of(raised_by(batch.add, [1], 1))


@pytest.mark.parametrize(
    "text, shown",
    [("import no_such_package\n", "line 1, in <module>"), ("def f(:\n", "def f(:")],
    ids=["import", "syntax"],
)
def test_a_module_that_fails_shows_its_own_lines_and_none_of_the_import_system(tmp_path, text, shown):
    (tmp_path / "broken.py").write_text(text)
    error = raised_by(build, f"{tmp_path}/broken.py:f")
    assert isinstance(error, TargetError)
    trace = trace_of(error)
    assert shown in trace
    assert "broken.py" in trace
    for noise in ("importlib", "TargetError", "core/targets.py", "direct cause"):
        assert noise not in trace


def test_the_message_has_the_type_unless_the_error_is_ours():
    assert message_of(ValueError("x")) == "ValueError: x"
    assert message_of(TargetError("x")) == "x"


def test_a_write_into_the_input_has_its_mend():
    mend = read_only_mend(ValueError("assignment destination is read-only"), "decode")
    assert mend.endswith("copy it, or set `mutable: true` on stage decode")
    assert read_only_mend(ValueError("another"), "decode") == ""
    assert read_only_mend(RuntimeError("output array is read-only"), "decode") == ""
