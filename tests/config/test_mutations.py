"""Whatever is done to a config, the answer is a spec or a ConfigError."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagepipe.config import load
from stagepipe.core import ConfigError

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")
TOKENS = re.findall(r"\w+|\s+|[^\w\s]", EXAMPLE)
WORDS = st.sampled_from(
    [
        *("", "{", "}", "[", "]", ": ", "- ", "${", "${vars.size}", "*a", "&a ", "<<: ", "null", "0", "-1", "1e400"),
        *("no", "'", '"', "\t", "\n", "!!int ", "uses", "with", "__main__", "os", ".", "%", "|", "\x00", "é"),
        *("9" * 4500, "stages: 1\n"),
    ]
)
EDITS = st.lists(st.tuples(st.integers(0, len(TOKENS) - 1), WORDS), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EDITS)
def test_a_mutated_config_raises_nothing_but_config_error(folder, edits):
    tokens = list(TOKENS)
    for at, word in edits:
        tokens[at] = word
    path = folder / "pipeline.yaml"
    path.write_text("".join(tokens), encoding="utf-8")
    try:
        load(path)
    except ConfigError as error:
        assert all(problem.message for problem in error.problems)  # noqa: PT017 - either outcome is right


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
