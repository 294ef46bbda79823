"""Whatever is done to a config, the answer is a spec or a ConfigError, soon."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.config import load
from stagepipe.core import ConfigError
from tests.fuzz.mutations import mutated

AT_ONCE_S = 10.0


def answers(folder, seeds, most_s):
    """How many of the mutated configs were right all the same, and were wrong. Ends early when `most_s` are over."""
    path = folder / "pipeline.yaml"
    right = wrong = 0
    began = time.monotonic()
    for seed in seeds:
        path.write_bytes(mutated(seed))
        begin = time.monotonic()
        try:
            load(path)
            right += 1
        except ConfigError as error:
            wrong += 1
            assert all(problem.message for problem in error.problems), f"seed {seed}"  # noqa: PT017 - either is right
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        assert time.monotonic() - begin < AT_ONCE_S, f"seed {seed} took too long"
        if time.monotonic() - began > most_s:
            break
    return right, wrong


def test_a_mutated_config_raises_nothing_but_config_error(folder):
    right, wrong = answers(folder, range(600), 10)
    assert right > 3
    assert wrong > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_mutated_configs(folder):
    right, wrong = answers(folder, range(1000, 13_000), 1500)
    print(f"{right + wrong} mutated configs: {right} right all the same, {wrong} with errors")  # noqa: T201 - with -s
    assert right + wrong > 10_000


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["uses", "with", "a"]), inner),
        max_leaves=8,
    ),
    st.sampled_from(["source", "stages", "vars", "name", "cpus", "env", "report", "window", "extends", "sink"]),
)
def test_any_value_under_any_key(value, key):
    source = {"uses": "itertools.count"}
    stage = {"name": "a", "uses": "math.sqrt", "cpus": value if key == "cpus" else None, "field": value, "env": value}
    try:
        load({"name": "p", "source": source, "stages": [stage], key: value})
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - either outcome is right
