"""Stages, sources and sinks that fork: with a child that comes back from the call, or one that exits by itself.

As a script, it runs all of `CASES`, in workers or inline: a line for each case, with its name and what it yields.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import stagepipe
import stagepipe.stages

FORKING_ITEM = 3


def is_forked_child(item):
    """Fork at one item; True in the child."""
    return item == FORKING_ITEM and os.fork() == 0


def returns(item):
    return item + 1000 if is_forked_child(item) else item


def raises(item):
    if is_forked_child(item):
        message = "raised in the child"
        raise ValueError(message)
    return item


def gives_none(item):
    return None if is_forked_child(item) else item


def skips(item):
    return stagepipe.SKIP if is_forked_child(item) else item


def yields(item):
    yield item
    if is_forked_child(item):
        yield 777


def forks_before_it_yields(item):
    if is_forked_child(item):
        yield 777
    yield item


def returns_a_batch(items):
    return [item + 1000 for item in items] if any(map(is_forked_child, items)) else items


def matches(item):
    return not is_forked_child(item)


class Accumulates:
    """Forks in its constructor."""

    def __init__(self):
        os.fork()

    def __call__(self, item):
        return item


class Pairs(stagepipe.stages.OrderPointStage):
    """An order point that forks where it takes an item."""

    def __init__(self):
        self.clear()

    def add(self, value, samples):
        self._group.append((1000 if is_forked_child(value) else value, samples))
        return len(self._group) == 2

    def flush(self, rng):
        group = self._group
        self.clear()
        return [([value for value, _ in group], sum(samples for _, samples in group))] if group else []

    def clear(self):
        self._group = []


class Dataset:
    """An indexed source."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return returns(index)


def stream():
    for item in range(6):
        yield returns(item)


class StreamThatEnds:
    """A stream whose child finds its end."""

    def __iter__(self):
        for item in range(6):
            if is_forked_child(item):
                return
            yield item


class BeginsEpochs:
    """A source whose epochs begin with a fork."""

    def begin(self, epoch, seed):
        os.fork()

    def __iter__(self):
        return iter(range(6))


class Sink:
    """Writes items to a file, and forks at one of them and at the end."""

    def __init__(self, path):
        self._path = Path(path)

    def __call__(self, item):
        item = returns(item)
        with self._path.open("a") as file:
            print(item, file=file)

    def close(self):
        os.fork()


def exits_by_system_exit(item):
    if is_forked_child(item):
        sys.exit(0)
    return item


def waits_for_its_child(item):
    if item == FORKING_ITEM:
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(write_fd, b"\7")
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write_fd)
        item += os.read(read_fd, 1)[0]
        os.close(read_fd)
    return item


def double(item):
    return item * 2


def asks_a_process(item):
    """Use a process of multiprocessing, a pool, and a pipeline in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_inline_pipeline, args=(sender, item))
    process.start()
    own = receiver.recv()
    process.join()
    assert process.exitcode == 0
    with context.Pool(2) as pool:
        doubled = pool.map(double, own)
    return sum(doubled) // 2


def run_inline_pipeline(sender, item):
    with stagepipe.from_source([item, 0]).map(double).open(inline=True) as pipeline:
        sender.send([value // 2 for value in pipeline])


NUMBERS = stagepipe.from_source(range(6))
CASES = {
    "returns": NUMBERS.map(returns),
    "raises": NUMBERS.map(raises),
    "raises, skipped": NUMBERS.map(raises, on_error="skip"),
    "raises, tried again": NUMBERS.map(raises, retries=2),
    "gives None": NUMBERS.map(gives_none),
    "skips": NUMBERS.map(skips),
    "fused": NUMBERS.map(returns, fuse=True).map(abs, fuse=True),
    "cached": NUMBERS.map(returns, cache={"path": os.environ.get("FORK_CACHE", "cache"), "key": "1"}),
    "yields": NUMBERS.flat_map(yields),
    "forks before it yields": NUMBERS.flat_map(forks_before_it_yields, retries=1),
    "batch": NUMBERS.map_batches(returns_a_batch, batch_size=2),
    "batch, skipped": NUMBERS.map_batches(returns_a_batch, batch_size=2, on_error="skip"),
    "condition": NUMBERS.map(abs, when=matches),
    "filter": NUMBERS.filter(matches),
    "constructor": NUMBERS.map(stagepipe.defer(Accumulates)),
    "order point": stagepipe.from_source(range(6)).map(stagepipe.defer(Pairs)),
    "dataset": stagepipe.from_source(Dataset()),
    "stream": stagepipe.from_source(stream),
    "stream that ends": stagepipe.from_source(StreamThatEnds()),
    "begins epochs": stagepipe.from_source(BeginsEpochs()),
    "sys.exit": NUMBERS.map(exits_by_system_exit),
    "os._exit": NUMBERS.map(waits_for_its_child),
    "multiprocessing": NUMBERS.map(asks_a_process),
}

if __name__ == "__main__":
    import tests.support.forking_stages as importable  # workers find its functions there, not in `__main__`

    for name, builder in importable.CASES.items():
        try:
            with builder.open(inline=sys.argv[1] == "inline") as pipeline:
                result = list(pipeline)
        except stagepipe.StagepipeError as error:
            result = str(error).partition("\n")[0]
        print(f"{name}: {result}", flush=True)  # noqa: T201
