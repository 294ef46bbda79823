"""A failure shows the user's frames only, and the path to the part that cannot be pickled."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from stagepipe.core import StagepipeError, TargetError, build_target
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.runtime.protocol import UnpicklableResultError, read_only_hint
from stagepipe.sources import FilesSource
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
    "value, location",
    [
        (LOCK, "_thread.lock: "),
        ({"image": 1, "lock": LOCK}, "lock (_thread.lock): "),
        ({"a": [1, (2, Holder({"x": LOCK}))]}, "a[1][1].held.x (_thread.lock): "),
        ([lambda: 1], "[0] (function): "),
    ],
)
def test_an_unpicklable_part_is_named_with_its_path(value, location):
    error = UnpicklableResultError(value, TypeError("cannot pickle it"))
    assert str(error) == (
        f"its return value cannot be pickled for the next process: {location}TypeError: cannot pickle it"
    )


def test_an_error_raised_only_by_stagepipe_has_no_trace():
    batch = Batch(2)
    batch.add([1], 1)
    assert format_user_traceback(raised_by(batch.add, [1, 2], 1)) == ""
    assert format_user_traceback(raised_by(build_target, "stagepipe.sources.files", {"glob": "/no/such/*"})) == ""
    assert format_user_traceback(raised_by(build_target, "no_such_package.f")) == ""
    assert format_user_traceback(StagepipeError("never raised")) == ""


def test_a_bug_in_stagepipe_keeps_its_trace():
    batch = Batch(2)
    batch.add([1], 1)
    batch._root_column = 3
    assert "in add" in format_user_traceback(raised_by(batch.add, [1], 1))


@pytest.mark.parametrize(
    "text, shown",
    [("import no_such_package\n", "line 1, in <module>"), ("def f(:\n", "def f(:")],
    ids=["import", "syntax"],
)
def test_a_module_that_fails_to_import_shows_only_its_own_lines(tmp_path, text, shown):
    (tmp_path / "broken.py").write_text(text)
    error = raised_by(build_target, f"{tmp_path}/broken.py:f")
    assert isinstance(error, TargetError)
    trace = format_user_traceback(error)
    assert shown in trace
    assert "broken.py" in trace
    for noise in ("importlib", "TargetError", "core/imports.py", "direct cause"):
        assert noise not in trace


def test_a_message_names_the_type_except_for_errors_of_stagepipe():
    assert format_error(ValueError("x")) == "ValueError: x"
    assert format_error(TargetError("x")) == "x"


def test_a_write_into_the_input_gets_a_hint():
    hint = read_only_hint(ValueError("assignment destination is read-only"), "decode")
    assert hint.endswith("copy it, or set `stages.decode.mutable=true`")
    assert read_only_hint(ValueError("another"), "decode") == ""
    assert read_only_hint(RuntimeError("output array is read-only"), "decode") == ""


def open_twice(path):
    return open(path).read()  # noqa: PTH123 - in a frame of the user


def test_a_file_that_only_we_open_needs_no_trace(tmp_path):
    missing = tmp_path / "a.jsonl"
    files = FilesSource(str(write_file(missing)), read=True)
    missing.unlink()
    assert format_user_traceback(raised_by(files.__getitem__, 0)) == ""
    assert "in open_twice" in format_user_traceback(raised_by(lambda: open_twice(missing)))


def write_file(path):
    path.write_text("{}")
    return path
