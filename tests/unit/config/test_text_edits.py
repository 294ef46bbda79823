"""Overrides in the text of a file: what they set is right, and all else stays as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.config.document import apply_overrides, parse_mapping, parse_value, to_plain
from stagepipe.config.text_edits import edit_text
from stagepipe.core import UsageError

BLOCK = """\
# A pipeline.
name: train   # its name

source:
  uses: my.read   # paths
stages:
  # decode opens files
  - name: decode
    uses: my.decode
    workers: 2   # two CPUs

  # the rest
  - uses: "my.resize"
    name: resize
    with: {size: 8,   # pixels
           mode: 'fast'}

sink: {uses: my.sink}
# the end
"""


def edited(text, *overrides, **options):
    return edit_text(text, overrides, **options)


def changed_lines(before, after):
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_value_is_replaced_and_its_comment_stays():
    after = edited(BLOCK, "stages.decode.workers=8")
    assert changed_lines(BLOCK, after) == (
        ["    workers: 2   # two CPUs"],
        ["    workers: 8   # two CPUs"],
    )


def test_a_new_key_comes_under_the_keys_of_its_stage_not_under_the_comment_after_it():
    after = edited(BLOCK, "stages.decode.threads=1")
    assert "    workers: 2   # two CPUs\n    threads: 1\n\n  # the rest\n" in after
    assert changed_lines(BLOCK, after) == ([], ["    threads: 1"])


def test_a_key_of_the_pipeline_comes_under_another_one():
    assert "name: train   # its name\n" in edited(BLOCK, "window=8")
    assert "sink: {uses: my.sink}\nwindow: 8\n# the end\n" in edited(BLOCK, "window=8")


def test_a_key_is_removed_with_its_line_only():
    after = edited(BLOCK, "stages.decode.workers=null")
    assert changed_lines(BLOCK, after) == (["    workers: 2   # two CPUs"], [])


def test_a_removed_key_in_a_file_that_extends_another_is_null():
    assert "    workers: null   # two CPUs\n" in edited(BLOCK, "stages.decode.workers=null", keeps_null=True)
    assert "threads: null" in edited(BLOCK, "stages.decode.threads=null", keeps_null=True)


def test_a_key_that_is_not_there_needs_no_removal():
    assert edited(BLOCK, "stages.decode.threads=null", "stages.other.threads=null") == BLOCK


def test_flow_style_keeps_its_lines_and_comments():
    after = edited(BLOCK, "stages.resize.with.more=1", "stages.resize.with.mode=null", "sink.workers=2")
    assert "    with: {size: 8,   # pixels\n" in after
    assert "sink: {uses: my.sink, workers: 2}" in after
    assert parse_value(after).get("stages").items[1].get("with").entries.keys() == {"size", "more"}


def test_the_first_key_of_a_flow_mapping_is_removed():
    assert edited("a: {x: 1, y: 2}", "a.x=null") == "a: {y: 2}"
    assert edited("a: {x: 1, y: 2}", "a.y=null") == "a: {x: 1}"
    assert edited("a: {x: 1}", "a.x=null") == "a: {}"


def test_the_key_after_a_dash_is_removed():
    assert edited("a:\n  - workers: 2\n    name: x\n", "a.x.workers=null") == "a:\n  - name: x\n"


def test_a_stage_that_is_not_in_the_file_is_added():
    after = edited(BLOCK, "stages.dataset.workers=3")
    assert "           mode: 'fast'}\n  - {name: dataset, workers: 3}\n\nsink" in after
    assert edited("name: x\n", "stages.dataset.workers=3") == "name: x\nstages: [{name: dataset, workers: 3}]\n"


def test_mappings_on_the_way_are_made():
    assert edited("name: x", "transport.mode=pipe") == "name: x\ntransport: {mode: pipe}"
    assert edited("a:\n  b: 1\n", "a.c.d=2") == "a:\n  b: 1\n  c: {d: 2}\n"
    assert edited("a:\nb: 1\n", "a.c=2") == "a: {c: 2}\nb: 1\n"


def test_the_ends_of_lines_stay():
    assert edited("a: 1\r\nb:\r\n  c: 2\r\n", "b.d=3") == "a: 1\r\nb:\r\n  c: 2\r\n  d: 3\r\n"


def test_an_override_replaces_an_alias_and_keeps_its_anchor():
    text = "vars: {n: &n 2}\nstages:\n  - {name: a, workers: *n}\n  - name: b\n    workers: *n  # as many\n"
    after = edited(text, "stages.a.workers=3", "stages.b.workers=4")
    assert after == text.replace("{name: a, workers: *n}", "{name: a, workers: 3}").replace("*n  #", "4  #")


def test_values_behind_an_alias_are_refused():
    text = "base: &base {workers: 2}\nstages:\n  - {name: a, uses: &other {x: 1}}\n  - {name: b, uses: *other}\n"
    with pytest.raises(UsageError, match="`uses` is an alias; set it by hand"):
        edited(text, "stages.b.uses.x=2")


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["1", "null", "2.5", "true", "32MiB", "[0, 2]", "${vars.n}", "0-3"])
COMMENTS = st.sampled_from(["", "  # why", " # {a: 1}"])
GAPS = st.sampled_from(["", "\n", "# on its own\n", "\n  # indented\n"])


@st.composite
def texts(draw):
    """A config in which mappings are written in any style, with comments at the ends of lines and between them."""
    lines = [f"{draw(GAPS)}name: x{draw(COMMENTS)}\nvars: {{n: 3}}\nstages:\n"]
    for name in draw(st.lists(NAMES, unique=True, min_size=1)):
        keys = draw(st.lists(st.sampled_from(["k", "l", "m"]), unique=True))
        values = [(key, draw(st.sampled_from(["1", "'q'", "", "{x: 1}", "[1, 2]", '"a: #b"']))) for key in keys]
        lines.append(draw(GAPS))
        if draw(st.booleans()):
            inner = draw(st.sampled_from([", ", ",\n     "])).join([f"name: {name}", *(f"{k}: {v}" for k, v in values)])
            lines.append(f"  - {{{inner}}}{draw(COMMENTS)}\n")
            continue
        lines.append(f"  - name: {name}{draw(COMMENTS)}\n")
        for key, value in values:
            lines.append(f"{draw(GAPS)}    {key}: {value}{draw(COMMENTS)}\n")
        if draw(st.booleans()):
            lines.append(f"    deep:\n      x: 1{draw(COMMENTS)}\n")
    lines.append(draw(st.sampled_from(["", "\n# end", "order: any\n", "...\n"])))
    return "".join(lines)


@given(
    texts(),
    st.lists(
        st.tuples(
            st.sampled_from(["stages.a.k", "stages.b.l", "stages.c.m", "stages.0.new", "window", "order"]), VALUES
        )
        | st.tuples(st.sampled_from(["stages.a.deep.x", "stages.b.deep.y", "stages.0.deep.z", "vars.n"]), VALUES),
        max_size=4,
    ),
)
def test_an_edited_text_says_what_the_overrides_say_and_keeps_its_comments(text, changes):
    overrides = [f"{path}={value}" for path, value in changes]
    problems = []
    wanted = apply_overrides(parse_mapping(text), overrides, problems)
    if problems:
        return
    after = edit_text(text, overrides)
    assert without_null(to_plain(parse_mapping(after))) == without_null(to_plain(wanted))
    assert list_comments(after) == list_comments(text)


def without_null(value):
    """Null and missing mean the same, and so does a mapping in which nothing is left."""
    if isinstance(value, dict):
        kept = {key: without_null(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None and inner != {}}
    return [without_null(inner) for inner in value] if isinstance(value, list) else value


def list_comments(text):
    """The comments that have a line for themselves."""
    return [line for line in text.splitlines() if line.strip().startswith("#")]
