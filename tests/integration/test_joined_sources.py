"""concat, zip and mix: nested, resumed, over ranks and workers, and what they refuse."""

import json
import random
import re
from typing import Any

import pytest

from stagepipe import Pipeline, defer, from_source
from stagepipe.sources import ConcatSource, MixSource, ZipSource
from tests.support.pipelines import batch, plain

A, B = [f"a{number}" for number in range(40)], [f"b{number}" for number in range(25)]


class Numbered:
    """A stream, which has no indices."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(range(self.count))


class Stateful(Numbered):
    """A stream that saves its state, from which it reads on."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.next = self.start = 0

    def __iter__(self) -> Any:
        self.next, self.start = self.start, 0
        while self.next < self.count:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["next"]


def make_config(name: str, *stages: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    source = {"uses": f"stagepipe.sources.{name}", **arguments.pop("keys", {}), "with": arguments}
    return {"name": "test", "seed": 3, "source": source, "stages": list(stages)}


def read(config: dict[str, Any], *, epochs: int = 1, inline: bool = True, **keys: Any) -> list[list[Any]]:
    with Pipeline(config, inline=inline, **keys) as pipeline:
        return [[plain(item) for item in pipeline] for _ in range(epochs)]


def numbers(count: int) -> dict[str, Any]:
    return {"uses": "stagepipe.sources.numbers", "with": {"count": count}}


NESTED = make_config(
    "mix",
    sources=[
        {"uses": "stagepipe.sources.concat", "with": {"sources": [numbers(30), numbers(13)], "shuffle": True}},
        {"uses": "stagepipe.sources.mix", "with": {"sources": [numbers(20), numbers(9)], "until": "all_exhausted"}},
        {"uses": "stagepipe.sources.zip", "with": {"sources": [numbers(50), numbers(50)]}},
    ],
    weights=[0.5, 0.3, 0.2],
    until="each_once",
    shuffle=True,
)


def test_nested_sources_resume_at_20_random_positions():
    expected = read(NESTED, epochs=3)
    assert len(expected[0]) == len(expected[1]) == 43 + 39 + 50
    assert expected[0] != expected[1]
    rnd = random.Random(7)
    stops = {epoch: rnd.sample(range(1, len(expected[0])), 10) for epoch in range(2)}
    states = []
    with Pipeline(NESTED, inline=True) as pipeline:
        assert len(pipeline) == 132
        for epoch, stops_of_epoch in stops.items():
            for position, _ in enumerate(pipeline, start=1):
                if position in stops_of_epoch:
                    states.append((epoch, position, pipeline.state_dict()))
    assert len(states) == 20
    for epoch, stop, state in states:
        with Pipeline(NESTED, inline=True) as resumed:
            resumed.load_state_dict(state)
            assert [plain(item) for item in resumed] == expected[epoch][stop:]


def test_nested_sources_split_over_three_ranks():
    [whole] = read(NESTED)
    ranks = [read(NESTED, rank=rank, world_size=3)[0] for rank in range(3)]
    assert [item for row in zip(*ranks, strict=True) for item in row] == whole


def test_nested_sources_are_the_same_with_three_workers():
    config = {**NESTED, "source": {**NESTED["source"], "workers": 3}}
    assert read(config, epochs=2, inline=False) == read(NESTED, epochs=2)


def test_a_mix_goes_into_batches_as_any_dataset():
    config = make_config("mix", batch(8), keys={"workers": 2}, sources=[numbers(100), numbers(100)])
    expected = read(make_config("mix", sources=[numbers(100), numbers(100)]))[0]
    batches = read(config, inline=False)[0]
    assert [number for one in batches for number in one[2]] == expected


def test_from_python():
    items = list(from_source(defer(MixSource, sources=[A, B], weights=[3, 1])).with_options(seed=3).open(inline=True))
    assert [item for item in items if item in A] == A
    assert sum(item in B for item in items) == pytest.approx(13, abs=1)
    assert list(from_source(ConcatSource([A, B])).open(inline=True)) == A + B


def test_concat_shuffles_a_part_or_all():
    part = {"uses": "stagepipe.sources.concat", "with": {"sources": [numbers(20)], "shuffle": True}}
    first, second = read(make_config("concat", sources=[part, numbers(5)]), epochs=2)
    assert first[20:] == second[20:] == list(range(5))
    assert sorted(first[:20]) == sorted(second[:20]) == list(range(20))
    assert first[:20] != second[:20]
    [whole] = read(make_config("concat", sources=[part, numbers(5)], shuffle=True))
    assert sorted(whole) == sorted(first)
    assert sorted(whole[20:]) != list(range(5))


def test_two_equal_parts_are_shuffled_differently():
    [items] = read(make_config("mix", sources=[numbers(50), numbers(50)], until="each_once", shuffle=True))
    source = MixSource([range(50), range(50)], until="each_once", shuffle=True)
    order = source.make_order(True)
    order.begin(0, 3)
    indices = [order[position] for position in range(100)]
    assert [index % 50 for index in indices] == items
    assert [index for index in indices if index < 50] != [index - 50 for index in indices if index >= 50]


def test_files_are_a_part(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    part = {"uses": "stagepipe.sources.files", "with": {"glob": str(tmp_path / "*.txt"), "read": True}}
    config = make_config("concat", keys={"workers": 2}, sources=[numbers(2), part])
    assert [item if isinstance(item, int) else item["data"] for item in read(config, inline=False)[0]] == [
        0,
        1,
        b"a",
        b"b",
        b"c",
    ]


def test_zip_stops_at_the_shortest_if_not_strict():
    assert read(make_config("zip", sources=[numbers(3), numbers(5)], strict=False))[0] == [(0, 0), (1, 1), (2, 2)]


def test_zip_refuses_unequal_lengths_and_orders():
    with pytest.raises(ValueError, match=r"zip: .* sources\[0\] 40, sources\[1\] 25; .* `strict: false`"):
        len(ZipSource([A, B]))
    with pytest.raises(ValueError, match=r"sources\.x 40, sources\.y 25"):
        len(ZipSource({"x": A, "y": B}))
    with pytest.raises(ValueError, match=r"zip: sources\[1\] has its own order.* set `shuffle: true` on `zip`"):
        len(ZipSource([A, ConcatSource([A], shuffle=True)]))
    with pytest.raises(ValueError, match=r"zip: sources\[0\] has its own order"):
        len(ZipSource([MixSource([A, B]), A]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weights": [1]}, "1 weights for 2 sources; give a list with one weight for each"),
        ({"weights": [1, 0]}, r"weights\[1\] is 0; give a number above 0"),
        ({"weights": [1, "x"]}, r"weights\[1\] is 'x'"),
        ({"weights": 0.5}, "`weights` is 0.5 for 2 sources; give a list"),
        ({"until": "first_exausted"}, "until is 'first_exausted', did you mean `first_exhausted`?"),
        ({"until": "foo"}, "until is 'foo'; write one of `first_exhausted`, `all_exhausted`, `each_once`$"),
    ],
)
def test_mix_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixSource([A, B], **arguments)


def test_mix_refuses_an_empty_source_and_a_vanishing_weight():
    with pytest.raises(ValueError, match=r"mix: sources\[1\] has no items; remove it"):
        MixSource([A, []]).make_order(False)
    with pytest.raises(ValueError, match="mix: a weight is less than 1 in 4194304 of all"):
        MixSource([A, B], weights=[1, 1e-9]).make_order(False)


@pytest.mark.parametrize(
    "part, message",
    [
        ("a.jsonl", "the string `a.jsonl`; write {uses: stagepipe.sources.jsonl, with: {path: a.jsonl}}"),
        ("data/*.txt", "the string `data/*.txt`; write {uses: stagepipe.sources.text, with: {path: data/*.txt}}"),
        ("my_data.Rows", "the string `my_data.Rows`; write {uses: my_data.Rows}"),
        ("data", "the string `data`; write {uses: ..., with: {path: ...}}"),
        (b"data", "of type bytes; give a source: {uses: ..., with: {...}}"),
    ],
)
@pytest.mark.parametrize("build", [ConcatSource, MixSource, ZipSource])
def test_a_text_is_no_source(build, part, message):
    for sources in ([A, part], [Numbered(), part]):
        if build is not ZipSource or sources[0] is A:
            with pytest.raises(TypeError, match=re.escape(f": sources[1] is {message}")):
                build(sources)
    assert ConcatSource([[1, 2], [3]])[2] == 3


def test_a_source_without_indices_is_refused():
    with pytest.raises(TypeError, match=r"zip: sources\[1\] is a stream \(Numbered\), whose items have no indices"):
        ZipSource([A, Numbered()])
    with pytest.raises(ValueError, match=r"mix: sources\[1\] is a stream, which has no indices for `shuffle` to order"):
        MixSource([A, Numbered()], shuffle=True)
    with pytest.raises(TypeError, match=r"concat: sources\[0\] is an iterator \(list_iterator\), .* read only once"):
        ConcatSource([iter(A)])
    with pytest.raises(TypeError, match=r"concat: sources\[0\] is int, which has no `__len__` and `__getitem__`"):
        ConcatSource([3])
    with pytest.raises(ValueError, match=r"concat: `sources` is \[\]; give a list"):
        ConcatSource([])
    nested = {"uses": "stagepipe.sources.dataset", "with": {"dataset": A}}
    with pytest.raises(TypeError, match="name its dataset itself"):
        list(Pipeline(make_config("concat", sources=[nested]), inline=True))


STREAMS = {
    "first_exhausted": lambda: MixSource([Stateful(30), A, Stateful(9)], weights=[3, 2, 1]),
    "all_exhausted": lambda: MixSource([Stateful(30), A, Stateful(9)], weights=[3, 2, 1], until="all_exhausted"),
    "each_once": lambda: MixSource([Stateful(30), ConcatSource([A, B], shuffle=True)], until="each_once"),
    "concat": lambda: ConcatSource([A, Stateful(7), B]),
    "nested": lambda: ConcatSource([MixSource([Stateful(20), B], until="each_once"), A]),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_a_stream_of_several_resumes_from_the_state_at_any_position(make):
    def open_stream() -> Any:
        stream = make()
        stream.begin(1, 3)
        return iter(stream)

    expected = list(open_stream())
    items = open_stream()
    for position in range(len(expected) + 1):
        state = json.loads(json.dumps(items.state_dict()))
        resumed = open_stream()
        resumed.load_state_dict(state)
        assert list(resumed) == expected[position:]
        if position < len(expected):
            assert next(items) == expected[position]


def test_streams_are_mixed_in_proportion_and_by_until():
    def read_stream(**arguments: Any) -> list[Any]:
        stream = MixSource([Numbered(50), A], weights=[3, 1], **arguments)
        stream.begin(0, 3)
        return list(stream)

    items = read_stream()
    assert [item for item in items if isinstance(item, int)] == list(range(50))
    assert sum(item in A for item in items) == pytest.approx(50 / 3, abs=6)
    once = read_stream(until="each_once")
    assert [item for item in once if isinstance(item, int)] == list(range(50))
    assert [item for item in once if item in A] == A
    repeated = [item for item in read_stream(until="all_exhausted") if isinstance(item, int)]
    assert repeated == [number % 50 for number in range(len(repeated))]
    assert len(repeated) > 100


def test_a_mix_with_a_stream_runs_resumes_and_splits():
    config = make_config("mix", sources=[Numbered(50), A], weights=[3, 1])
    expected = read(config, epochs=2)
    assert expected[0] != expected[1]
    with Pipeline(config) as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(20)] == expected[0][:20]
        state = pipeline.state_dict()
    with Pipeline(config) as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[0][20:]
        assert list(pipeline) == expected[1]
    ranks = [read(config, rank=rank, world_size=3)[0] for rank in range(3)]
    assert sorted(str(item) for items in ranks for item in items) == sorted(map(str, expected[0]))


def test_an_empty_stream_that_must_begin_again_is_named():
    stream = MixSource([Numbered(0), A], until="all_exhausted")
    stream.begin(0, 3)
    with pytest.raises(ValueError, match=r"mix: sources\[0\] has no items; remove it"):
        list(stream)
