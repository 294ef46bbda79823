"""Say at which size and work which engine wins, on 1 to 1,000 nodes, from measured costs.

    python -m benchmarks.cluster_model [--json FILE] [--plot FILE.svg] [--network 25] [--storage 100] [--cpus 16]
    python -m benchmarks.cluster_model --measure docs/benchmarks/cluster_costs.json   # Ray on this machine, minutes

The first simulates, in half a minute, and starts nothing. Its costs are in the file that the second writes, of both
engines side by side. docs/scaling.md has the formula.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.cluster_model.costs import (
    COSTS_FILE,
    GBIT_BYTES,
    ClusterSize,
    EngineCosts,
    load_costs,
    load_quiet_local_costs,
)
from benchmarks.cluster_model.tables import (
    NODES,
    draw,
    format_agreement,
    format_least_nodes,
    format_loss,
    format_rates,
    make_panels,
)
from benchmarks.common.command import machine, machine_line, repeat_command, write_json

_ROUNDS = 3


def main(arguments: Sequence[str]) -> None:
    """Simulate and print, or measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file for all rates")
    parser.add_argument("--plot", type=Path, default=Path("runs/cluster_model.svg"))
    parser.add_argument("--network", type=_parse_positive, default=25.0, help="Gbit/s of each node: 10, 25, 100")
    parser.add_argument("--storage", type=_parse_positive, default=100.0, help="GB/s of the storage that all share")
    parser.add_argument("--cpus", type=int, choices=range(1, 257), default=16, metavar="N", help="of each node")
    parser.add_argument("--nodes", type=int, nargs="+", choices=range(1, 10_001), default=NODES, metavar="N")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="what --measure has written")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure the costs of Ray here, and write them")
    parser.add_argument("--rounds", type=int, choices=range(1, 101), default=_ROUNDS, metavar="N", help="of --measure")
    options = parser.parse_args(arguments)
    if options.measure is not None:
        _measure(options.measure, options.rounds)
        return
    if not options.costs.is_file():
        parser.error(f"--costs {options.costs}: no such file; write one with --measure {options.costs}")
    cluster = ClusterSize(
        nodes=1,
        cpus_per_node=options.cpus,
        network_bytes_per_s=options.network * GBIT_BYTES,
        storage_bytes_per_s=options.storage * 1e9,
    )
    try:
        costs = load_costs(options.costs)
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"--costs {options.costs}: {error!r}; write it with --measure {options.costs}")
    _simulate(options, cluster, costs)


def _parse_positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _measure(path: Path, rounds: int) -> None:
    from benchmarks.cluster_model.measure import measure

    about = machine(["ray", "pyarrow"])
    print(machine_line(about), flush=True)
    write_json(
        path, {"command": repeat_command("cluster_model"), "machine": about, "rounds": rounds, **measure(rounds)}
    )


def _simulate(options: argparse.Namespace, cluster: ClusterSize, costs: EngineCosts) -> None:
    points = json.loads(options.costs.read_text())["points"]
    panels = make_panels(cluster, costs, options.nodes)
    print(f"costs from {machine_line(dict(costs.machine))}", *map(str, (costs.local, costs.ray)), sep="\n")
    print(f"a local hop on a quiet machine, from its own benchmark: {load_quiet_local_costs()}")
    print("\nitems/s, simulated (in brackets: what the formula says limits it)\n", *format_rates(panels), sep="\n")
    print("\nfaster than one machine from so many nodes on\n", *format_least_nodes(cluster, costs), sep="\n")
    print("\nten nodes, one lost half-way\n", *format_loss(cluster, costs), sep="\n")
    print("\nthe formula beside what was measured\n", *format_agreement(points, costs), sep="\n")
    draw(panels, cluster, options.plot)
    print(f"\nplot: {options.plot}")
    write_json(
        options.json,
        {
            "command": repeat_command("cluster_model"),
            "machine": costs.machine,
            "cluster": asdict(cluster),
            "local": asdict(costs.local),
            "ray": asdict(costs.ray),
            "panels": [asdict(panel) for panel in panels],
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
