"""An executable model of the protocol by which items, seeks and deaths pass through a pipeline.

    python -m tests.protocol_model                                          2,000 random pipelines
    python -m tests.protocol_model --count 20000 --seed 7                   how many, and the first seed
    python -m tests.protocol_model --count 1 --seed 944 --break carry-skips one pipeline, with one rule broken
    python -m tests.protocol_model --break each                             each rule broken in turn

The exit status is 1 if a pipeline goes wrong; with a broken rule, if none does.

The model is the oracle of the protocol: it states the rules in as little code as possible. Its supervisor is the
product's own state machine (`runtime/supervisor/recovery.py`), so each trial tests that; its workers, order points and
sink are models, and the product follows them without importing them. All processes of the model run in one thread under
a random scheduler that a seed determines, so every interleaving is cheap to try and every failure repeats.

It covers keys, order points, windows, cursors, seeks, generations, eras, leases and the wipe of memory after a death.
A trial kills processes at any step, the sink and the source among them; processes learn late of a seek; stages fail and
succeed on the second try; an iteration is abandoned; and a pipeline that has begun to prefetch resumes from a cursor of
another one. The output must equal the plain run, no stage may receive wiped memory, and no block may leak. Where stages
fail at random, the output has no single right value. There the trial checks that no wiped value is delivered, and that
no source item is delivered twice unless a stage is a generator.

Some pipelines deliver in any order; the output is then compared without its order. Some have values that kill the
worker that processes them: always (poison, which is skipped or ends the run) or too seldom for poison; the worker dies
or takes too long. In some, packets vanish, so that nothing can move until the supervisor seeks. In most a packet may
have several entries, and most items without a cursor become chunks: consecutive items in one block, parts of an item
too, with room for tombstones. A process holds entries and a chunk back until it has to wait. A reader takes a chunk
item by item, so that kills, seeks and batches come between any two of them. Some sources send ranges of numbers, and
the workers make the items. In some stages a worker has several items in progress. In half of the pipelines workers come
and go at random steps, also while others die: an empty slot gets one, and one retires. Those die too.

It leaves out any order with Batch or Shuffle, stages that take a list of items, memory limits, and real releases: here
a release takes effect at once and is never lost. It does not check how far a window lets a process run ahead, only that
windows never block the pipeline for ever. It does not notice a lease that is held until the next seek. It says nothing
about speed, and a stall begins as soon as nothing can move.

    trials              what is done to the pipeline of a seed, and what its output is compared with
    random_pipelines    the pipeline of a seed, and its plain run
    stage_functions     what stages compute
    pipeline            the processes, the random scheduler, kills, wipes
    supervisor          the product's state machine of recovery, in a shell of the model; broken where a rule says so
    order_points        Batch, Shuffle, the sink
    reorder             how an order point restores the order of keys
    workers, sources    the other processes
    processes           what all processes share: generation, era, leases
    windows             the board of progress words
    memory              blocks and references
    packets             what travels
    rules               the rules that can be broken
"""

# ruff: noqa: T201 - it prints its results
from __future__ import annotations

import argparse
import sys

from tests.protocol_model.rules import Rule
from tests.protocol_model.trials import problems

_MAX_PROBLEMS_SHOWN = 10


def main() -> int:
    """Run the trials that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol_model",
        description="Random pipelines of the protocol model against the plain run.",
    )
    parser.add_argument("--count", type=int, default=2000, help="number of pipelines")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first pipeline")
    parser.add_argument(
        "--break", dest="broken", choices=["each", *(rule.value for rule in Rule)], help="rule to break"
    )
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    if options.broken is None:
        return int(_report(seeds, None) > 0)
    rules = list(Rule) if options.broken == "each" else [Rule(options.broken)]
    counts = [_report(seeds, rule) for rule in rules]
    return int(0 in counts)


def _report(seeds: range, broken: Rule | None) -> int:
    """Print what went wrong; return the number of pipelines that did."""
    found = list(problems(seeds, broken))
    title = f"{broken.value} broken: " if broken else ""
    print(f"{title}{len(seeds)} pipelines, {len(found)} wrong")
    for _, problem in found[:_MAX_PROBLEMS_SHOWN]:
        print(f"  {problem}")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
