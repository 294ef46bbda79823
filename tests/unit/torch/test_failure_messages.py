"""A failure reaches every rank that shares the pipeline with the type of the stage's exception."""

from stagepipe import RunError
from stagepipe.core import with_error_type
from stagepipe.torch.leader import to_failure_message
from stagepipe.torch.rank_connection import decode_message, encode_message, to_run_error


def test_a_failure_keeps_its_type_and_fields():
    error = with_error_type(RunError("m", stage="decode", worker=1, item="7", trace="t"), "builtins:KeyError")
    received = to_run_error(decode_message(encode_message(to_failure_message(3, error))))
    assert isinstance(received, KeyError)
    assert (str(received), vars(received)) == (str(error), vars(error))


def test_a_plain_failure_stays_plain():
    assert type(to_run_error(to_failure_message(3, RunError("m")))) is RunError
