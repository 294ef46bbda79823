"""Any mutated config loads or raises ConfigError, within seconds."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.config import load
from stagepipe.core import ConfigError
from tests.support.mutations import mutated

MAX_LOAD_S = 10.0


def count_outcomes(folder, seeds, limit_s):
    """Count the mutated configs that are still valid and those that are invalid. Stops after `limit_s`."""
    path = folder / "pipeline.yaml"
    valid = invalid = 0
    start = time.monotonic()
    for seed in seeds:
        path.write_bytes(mutated(seed))
        load_start = time.monotonic()
        try:
            load(path)
            valid += 1
        except ConfigError as error:
            invalid += 1
            assert all(problem.message for problem in error.problems), f"seed {seed}"  # noqa: PT017 - either outcome is right
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        assert time.monotonic() - load_start < MAX_LOAD_S, f"seed {seed} took too long"
        if time.monotonic() - start > limit_s:
            break
    return valid, invalid


def test_a_mutated_config_raises_only_config_error(folder):
    valid, invalid = count_outcomes(folder, range(200), 60)
    assert valid > 3
    assert invalid > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_mutated_configs(folder):
    valid, invalid = count_outcomes(folder, range(1000, 13_000), 1500)
    print(f"{valid + invalid} mutated configs: {valid} valid, {invalid} invalid")  # noqa: T201 - shown with -s
    assert valid + invalid > 10_000


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
    name, cpus = (value if key == option else default for option, default in (("name", "a"), ("cpus", None)))
    stage = {"name": name, "uses": "math.sqrt", "cpus": cpus, "field": value, "env": value}
    try:
        load({"name": "p", "source": source, "stages": [stage], key: value})
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("name", [{"a": 1}, [1], 3, True, ""])
def test_a_stage_name_of_another_type_is_a_problem_of_the_config(name):
    with pytest.raises(ConfigError, match=r"stages\.0\.name"):
        load({"name": "p", "source": {"uses": range(3)}, "stages": [{"name": name, "uses": "math.sqrt"}]})
