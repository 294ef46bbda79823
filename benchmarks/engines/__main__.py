"""Time the engines side by side and print ratios: `python -m benchmarks.engines`.

    python -m benchmarks.engines --sizes 1200000 --rounds 6

Each contestant moves arrays through two stages, one worker each, in every round; a ratio is of one round. Start-up is
left out. The order of the contestants changes from round to round. Ray runs on this machine, with its CPUs.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile

from benchmarks.common.figures import estimate
from benchmarks.common.turn import order
from benchmarks.engines.contestants import CONTESTANTS, measure_rate

_SIZES_BYTES = (100_000, 1_200_000, 38_500_000)
_BYTES_PER_ROUND = 400_000_000
_ITEM_LIMITS = (30, 1000)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES_BYTES, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="stagepipe-ray-") as folder:
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            for nbytes in arguments.sizes:
                compare(nbytes, arguments.rounds)
        finally:
            ray.shutdown()


def compare(nbytes: int, rounds: int) -> None:
    """Time all contestants with items of one size, and print their rates and ratios."""
    low, high = _ITEM_LIMITS
    items = min(max(_BYTES_PER_ROUND // nbytes, low), high) // 10 * 10
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in order(list(CONTESTANTS), number):
            rates[name].append(measure_rate(name, items, nbytes))
    print(f"{nbytes:,} bytes, {items} items, {rounds} rounds: items/s, and ratio to ray data, as median [low, high]")
    for name, values in rates.items():
        ratios = [value / base for value, base in zip(values, rates["ray data"], strict=True)]
        print(f"  {name:12} {estimate(values).text(1):28} {estimate(ratios).text()}", flush=True)


if __name__ == "__main__":
    main()
