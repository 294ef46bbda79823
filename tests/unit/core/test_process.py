"""Owners abandon what they own in each child that their process forks, and only there."""

import gc
import os

import pytest

from stagepipe.core import UserCode, register_owner


class Owner:
    def __init__(self):
        self.abandoned = []

    def abandon_in_child(self):
        self.abandoned.append(os.getpid())


def fork_and_ask(question) -> int:
    """Return what `question` answers in a forked child."""
    pid = os.fork()
    if not pid:
        os._exit(question())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_owner_abandons_only_in_the_child():
    owner = Owner()
    register_owner(owner)
    assert fork_and_ask(lambda: len(owner.abandoned)) == 1
    assert owner.abandoned == []


def test_a_grandchild_does_not_abandon_again():
    owner = Owner()
    register_owner(owner)
    assert fork_and_ask(lambda: fork_and_ask(lambda: len(owner.abandoned))) == 1


def test_an_owner_that_is_gone_is_forgotten():
    abandoned = []
    owner = Owner()
    owner.abandoned = abandoned
    register_owner(owner)
    del owner
    gc.collect()
    assert fork_and_ask(lambda: len(abandoned)) == 0


@pytest.mark.parametrize(
    "error, status",
    [
        (None, 0),
        (SystemExit(), 0),
        (SystemExit(7), 7),
        (SystemExit("no"), 1),
        (ValueError(), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_a_child_that_leaves_user_code_ends_with_the_status_of_an_interpreter(error, status):
    user_code = UserCode("stage f")
    pid = os.fork()
    if not pid:
        try:
            with user_code:
                if error is not None:
                    raise error
        finally:
            os._exit(100)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status


def test_user_code_that_does_not_fork_is_left_as_it_is():
    with pytest.raises(ValueError, match="own"), UserCode("stage f"):
        raise ValueError("own")
