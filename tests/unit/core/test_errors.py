"""A RunError has the type of the user's exception, made from the type's name alone."""

import copy
import pickle

import pytest

from stagepipe import RunError, UsageError
from stagepipe.core import get_error_type, name_error_type, with_error_type
from tests.support.user_errors import ERRORS, CannotBeSubclassed, ItsOwnMessage, make_local_error

FIELDS = {"stage": "decode", "worker": 1, "item": "17", "trace": "Traceback ..."}


@pytest.mark.parametrize("cause", ERRORS.values(), ids=ERRORS)
def test_a_typed_error_reads_like_a_run_error(cause):
    plain = RunError("decode failed", **FIELDS)
    typed = with_error_type(plain, name_error_type(cause))
    assert isinstance(typed, type(cause))
    assert isinstance(typed, RunError)
    assert str(typed) == str(plain) == "decode failed\n\nTraceback ..."
    assert vars(typed) == {"message": "decode failed", **FIELDS}
    assert repr(typed).startswith(f"RunError[{type(cause).__name__}]('decode failed")
    assert typed == typed  # noqa: PLR0124 - by identity, whatever the user's type compares
    assert len({typed}) == 1


@pytest.mark.parametrize("clone", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
@pytest.mark.parametrize("cause", ERRORS.values(), ids=ERRORS)
def test_a_typed_error_can_be_pickled(cause, clone):
    typed = with_error_type(RunError("m", **FIELDS), name_error_type(cause))
    cloned = clone(typed)
    assert isinstance(cloned, type(cause))
    assert (str(cloned), vars(cloned), get_error_type(cloned)) == (str(typed), vars(typed), get_error_type(typed))


@pytest.mark.parametrize(
    "cause",
    [
        StopIteration(),
        StopAsyncIteration(),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(1),
        UsageError("of ours, which the command line takes for a wrong call"),
        make_local_error(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_these_types_are_not_named(cause):
    assert not name_error_type(cause)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "no_such_module:Error",
        "builtins:NoSuchError",
        "builtins:int",
        "builtins:StopIteration",
        "os:path.join",
        "tests.support.user_errors:ItsOwnMessage",
        "tests.support.user_errors:CannotBeSubclassed",
        "builtins:ExceptionGroup",
    ],
)
def test_any_other_name_leaves_the_error_as_it_is(name):
    assert {ItsOwnMessage, CannotBeSubclassed}  # imported: found, and not usable
    error = RunError("m")
    assert with_error_type(error, name) is error


GROUP = ExceptionGroup("in threads", [KeyError("a"), ExceptionGroup("inner", [ValueError("b"), make_local_error()])])


@pytest.mark.parametrize("clone", [lambda error: error, lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_a_group_of_exceptions_is_one_again(clone):
    error = clone(with_error_type(RunError("stage f: in threads", **FIELDS), name_error_type(GROUP)))
    assert isinstance(error, RunError)
    assert isinstance(error, ExceptionGroup)
    assert (error.message, error.stage, error.trace) == ("stage f: in threads", "decode", "Traceback ...")
    key_error, inner = error.exceptions
    assert isinstance(key_error, KeyError)
    assert str(key_error) == "'a'"
    assert [isinstance(each, ValueError) for each in inner.exceptions] == [True, False]
    found = []
    try:
        raise error
    except* ValueError as matching:
        found.append(str(matching.exceptions[0].exceptions[0]))
    except* KeyError:
        found.append("key")
    except* RunError:
        found.append("rest")
    assert found == ["b", "key", "rest"]


def test_a_group_that_is_no_exception_is_not_named():
    assert not name_error_type(BaseExceptionGroup("g", [KeyboardInterrupt()]))
