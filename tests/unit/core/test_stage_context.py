"""SKIP stays the same object wherever it travels."""

import copy
import pickle

import cloudpickle

from stagepipe import SKIP


def test_skip_is_itself_in_every_copy():
    assert pickle.loads(pickle.dumps(SKIP)) is SKIP
    assert pickle.loads(cloudpickle.dumps([SKIP])) == [SKIP]
    assert copy.deepcopy(SKIP) is SKIP


def test_a_function_of_a_script_takes_skip_along():
    namespace = {"__name__": "__main__", "SKIP": SKIP}
    exec("def drop(item): return SKIP", namespace)
    drop = pickle.loads(cloudpickle.dumps(namespace["drop"]))
    assert drop is not namespace["drop"]
    assert drop(1) is SKIP
