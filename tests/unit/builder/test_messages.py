"""A mistake in Python names the call that made it; settings are written as a config has them.

`golden/` holds all messages; `pytest tests/unit/builder --update-goldens` writes them again.
"""

import re
from functools import partial

import pytest

from stagepipe import ConfigError, Pipeline, defer, from_dataset, from_source, sources
from stagepipe.stages import image


def decode(item): ...


def crop(item, size): ...


class Resize:
    def __init__(self, size): ...

    def __call__(self, item): ...


class Trim:
    def __init__(self, sides: list[int], *, fast: bool = False): ...

    def __call__(self, item): ...


START = from_source(range(3))
BROKEN_CHAINS = [
    START.map(decode, workers=0).with_options(order="none"),
    START.map(decode, workers="4"),
    START.map(decode, workers={"min": 4, "max": 2}),
    START.map(decode, fuse="yes"),
    START.map(decode, on_error="ignore"),
    START.map(decode, env=["A"]),
    START.map(decode, env={"A": 1.5}),
    START.map(decode, timeout="soon"),
    START.map(decode, name="a b"),
    START.map(decode, name="x").map(decode, name="x"),
    START.map(decode, fuse=True, workers=3),
    START.map(decode).map(decode, fuse=True, mutable=True),
    START.map(crop),
    START.map(partial(crop, item=3, size=2)),
    START.map(defer(Resize)),
    START.map(defer("fractions.Fraction", numerato=3)),
    START.map(defer(Trim, sides=4, fast="yes")),
    START.map(defer(image.Resize, 4, fit="stretchy")),
    START.shuffle(4).map(defer(Trim, [1, "2"])),
    START.map("os.path.jion"),
    START.map("no_such_module.decode"),
    START.map("decode"),
    START.map("__main__.decode"),
    START.map("./no_such_file.py:decode"),
    START.map_field(3, decode),
    START.map_field("a", decode, as_="torch"),
    START.map_field("a", decode, max_wait=1),
    START.map_batches(decode, batch_size=0),
    START.filter(decode, mutable=1),
    START.shuffle(4, on_error="skip"),
    START.batch(4, workers=2),
    START.with_options(max_skipped="a lot"),
    START.with_options(version=2),
    START.with_options(engine="dask"),
    from_dataset([1], batch_size=0),
    from_dataset([1], batch_size=2, batch_sampler=[[0]]),
    from_dataset([1], shuffle=True, sampler=[1]),
    from_dataset([1], collate_fn=decode),
    from_dataset(map(abs, [1]), shuffle=True, workers=2),
    from_source(iter([1])),
    from_source(3),
    from_source(defer(sources.files)),
    from_source([1], workers=3),
    from_source(defer(sources.dataset, [1]), fuse=True, workers=3),
    START.sink("os.nothing"),
]
REFUSED_CALLS = [
    lambda: START.map(decode, num_workers=2),
    lambda: START.map(decode, max_workers=2),
    lambda: START.map(decode, wrkers=2),
    lambda: START.map(decode, batch_size=3),
    lambda: START.map(decode, drop_last=True),
    lambda: START.map(decode, surprise=1),
    lambda: START.with_options(workers=2),
    lambda: START.with_options(seeds=2),
    lambda: START.with_options(timeout=3),
    lambda: START.with_options(batch_size=3),
    lambda: from_dataset([1], num_workers=2),
    lambda: from_dataset([1], persistent_workers=True),
    lambda: from_dataset([1], surprise=True),
    lambda: START.batch(4, droplast=True),
    lambda: START.map_field("a", decode, asx="numpy"),
    lambda: START.sink(print, worker=2),
    lambda: from_dataset([1], batchsize=2),
    lambda: from_source([1], retry=3),
]
RANGE = {"uses": range(3)}
BROKEN_DICTS = [
    {"source": RANGE, "stages": [{"name": "a", "uses": crop, "worker": 2}]},
    {"source": RANGE, "stages": [{"name": "a", "uses": decode, "fuse": "yes", "batch": {"max_wait": 3}}]},
    {"source": RANGE, "stages": [{"name": "a", "uses": decode, "fuse": True, "mutable": True}]},
    {"source": RANGE, "stages": [{"uses": decode}]},
    {"source": RANGE, "stages": {"name": "a"}},
    {"source": 3, "batch_size": 3},
    {"source": RANGE, "stages": [{"name": "a", "uses": decode, "batch_size": 3}]},
    {"source": {"uses": "stagepipe.sources.dataset", "with": {"dataset": [1], "num_workers": 2}}},
]


def message_of(config):
    with pytest.raises(ConfigError) as caught:
        Pipeline(config)
    return str(caught.value)


def test_messages_of_chains_equal_their_golden_file(golden):
    golden("chains.txt", "\n\n".join(map(message_of, BROKEN_CHAINS)) + "\n")


def refusal_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_an_unknown_option_is_refused_by_the_call(golden):
    messages = "\n\n".join(map(refusal_of, REFUSED_CALLS)) + "\n"
    golden("refused_calls.txt", re.sub(r"known keys: allow_none, .*", "known keys: <all of the call>", messages))


def test_messages_of_dicts_equal_their_golden_file(golden):
    golden("dicts.txt", "\n\n".join(map(message_of, BROKEN_DICTS)) + "\n")


@pytest.mark.parametrize("builder", BROKEN_CHAINS, ids=str)
def test_every_problem_of_a_chain_names_its_call(builder):
    with pytest.raises(ConfigError) as caught:
        builder.open()
    texts = {call.text for call in builder.python_calls}
    assert {problem.call for problem in caught.value.problems} <= texts
