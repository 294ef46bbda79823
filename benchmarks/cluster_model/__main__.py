"""Compute which engine wins at which size and work, on 1 to 1,000 nodes, from measured costs.

    python -m benchmarks.cluster_model [--json FILE] [--plot FILE.svg] [--network 25] [--storage 100] [--cpus 16]
    python -m benchmarks.cluster_model --measure benchmarks/results/cluster_costs.json  # Ray here, minutes
    python -m benchmarks.cluster_model --page  # fill the tables of docs/scaling.md from benchmarks/results

The first command simulates, in half a minute, and starts no process. Its costs come from the file that the second
command writes, for both engines side by side. docs/scaling.md has the costs and rates.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.cluster_model import (
    COSTS_FILE,
    GBIT_BYTES,
    ClusterSize,
    CpuPoint,
    EngineCosts,
    ModelEngine,
    ModelJob,
    NodeLoss,
    find_least_nodes,
    get_local_cpu_s,
    get_total_cpu_s,
    load_costs,
    load_quiet_local_costs,
    make_measured_job,
    measure,
    name_limit,
    predict_rate,
    simulate,
)
from benchmarks.common.command import machine, machine_line, repeat_command, write_json
from benchmarks.common.page import fill, save_plot
from benchmarks.common.turn import FIGURES, ROOT

PAGE = ROOT / "docs" / "scaling.md"
RESULTS = FIGURES / "cluster_model.json"
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
    parser.add_argument("--page", action="store_true", help=f"simulate nothing; fill {PAGE.name} from {RESULTS.name}")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(make_page(PAGE.read_text()))
        return
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


NODES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
_SHOWN_NODES: Final = (1, 10, 100, 1_000)
SIZES_BYTES: Final = (100_000, 1_200_000, 38_500_000)
WORKS_S: Final = (0.001, 0.01)
_SMALL_RESULT_BYTES: Final = 1_000.0
_LOSS_NODES: Final = 10
_LOSS_RUN_S: Final = 300.0
_LOSS_WORK_S: Final = 0.1
_COLOURS: Final = {
    "islands, 1 KB out": "#c1272d",
    "engine: ray, 1 KB out": "#2a6f97",
    "islands, arrays out": "#e39a9c",
    "engine: ray, arrays out": "#8ab4cf",
    "engine: ray, arrays back": "#5f5f9e",
}


@dataclass(frozen=True)
class ModelCurve:
    """The items per second of an engine over the nodes; `limits` has the formula's limit at each."""

    name: str
    rates: Mapping[int, float]
    limits: Mapping[int, str]


@dataclass(frozen=True)
class ModelPanel:
    """All curves of an item size and a work. The two rates of one machine need no cluster."""

    item_bytes: int
    work_s: float
    process_rate: float
    local_rate: float
    curves: tuple[ModelCurve, ...]

    @property
    def title(self) -> str:
        """Name the size and the work."""
        return f"{format_bytes(self.item_bytes)}, {self.work_s * 1e3:g} ms"


def format_bytes(nbytes: float) -> str:
    """Format with a decimal unit.

    >>> [format_bytes(size) for size in (100_000, 1_200_000)]
    ['100 KB', '1.2 MB']
    """
    return f"{nbytes / 1e6:g} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:g} KB"


def list_contests(item_bytes: float, work_s: float) -> dict[str, tuple[ModelEngine, ModelJob]]:
    """Return the engine and the job of each curve. Results are 1 KB or the arrays, written by sinks, or returned."""
    features = ModelJob.of_images(item_bytes, work_s, _SMALL_RESULT_BYTES)
    arrays = ModelJob.of_images(item_bytes, work_s, item_bytes)
    returned = ModelJob.of_images(item_bytes, work_s, item_bytes, returns_items=True)
    return {
        "islands, 1 KB out": (ModelEngine.ISLANDS, features),
        "engine: ray, 1 KB out": (ModelEngine.RAY, features),
        "islands, arrays out": (ModelEngine.ISLANDS, arrays),
        "engine: ray, arrays out": (ModelEngine.RAY, arrays),
        "engine: ray, arrays back": (ModelEngine.RAY, returned),
    }


def make_panels(cluster: ClusterSize, costs: EngineCosts, nodes: Sequence[int] = NODES) -> list[ModelPanel]:
    """Simulate all engines at all sizes, works and numbers of nodes."""
    panels = []
    for item_bytes in SIZES_BYTES:
        for work_s in WORKS_S:
            contests = list_contests(item_bytes, work_s)
            job = contests["islands, 1 KB out"][1]
            curves = []
            for name, (engine, contested) in contests.items():
                sizes = {count: replace(cluster, nodes=count) for count in nodes}
                rates = {n: simulate(engine, contested, size, costs).items_per_s for n, size in sizes.items()}
                limits = {n: name_limit(engine, contested, size, costs) for n, size in sizes.items()}
                curves.append(ModelCurve(name, rates, limits))
            process_rate = predict_rate(ModelEngine.PROCESS, job, cluster, costs)
            local_rate = predict_rate(ModelEngine.LOCAL, job, cluster, costs)
            panels.append(ModelPanel(item_bytes, work_s, process_rate, local_rate, tuple(curves)))
    return panels


def format_rates(panels: Sequence[ModelPanel]) -> Iterator[str]:
    """Yield a Markdown table of the rates at some numbers of nodes, each with its limit."""
    counts = list(panels[0].curves[0].rates)
    shown = [count for count in _SHOWN_NODES if count in counts] or counts
    yield (
        "| item, work | engine | "
        + " | ".join(f"{count:,} {'node' if count == 1 else 'nodes'}" for count in shown)
        + " |"
    )
    yield "|---|---|" + "---|" * len(shown)
    for panel in panels:
        yield f"| {panel.title} | one process | {panel.process_rate:,.0f} |" + " |" * (len(shown) - 1)
        yield f"| | local | {panel.local_rate:,.0f} |" + " |" * (len(shown) - 1)
        for curve in panel.curves:
            cells = [f"{curve.rates[count]:,.0f} ({curve.limits[count]})" for count in shown]
            yield f"| | {curve.name} | {' | '.join(cells)} |"


def format_least_nodes(cluster: ClusterSize, costs: EngineCosts) -> Iterator[str]:
    """Yield a table of the number of nodes from which each engine is faster than one machine without Ray."""
    names = list(list_contests(1, 1))
    yield f"| item, work | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for item_bytes in SIZES_BYTES:
        for work_s in WORKS_S:
            found = [
                find_least_nodes(engine, job, cluster, costs)
                for engine, job in list_contests(item_bytes, work_s).values()
            ]
            cells = ["never" if least is None else f"{least}" for least in found]
            yield f"| {format_bytes(item_bytes)}, {work_s * 1e3:g} ms | {' | '.join(cells)} |"


def format_loss(cluster: ClusterSize, costs: EngineCosts) -> Iterator[str]:
    """Yield a table of the delay of a five-minute run that loses one of its ten nodes half-way."""
    cluster = replace(cluster, nodes=_LOSS_NODES)
    job = ModelJob.of_images(1_200_000, _LOSS_WORK_S, _SMALL_RESULT_BYTES)
    block_s = costs.ray.count_block_items(job)[1] * get_local_cpu_s(job, costs.local)
    blocks_per_cpu = int(_LOSS_RUN_S / block_s)
    cases = {
        "engine: ray": (ModelEngine.RAY, NodeLoss()),
        "islands, a folder that all see": (ModelEngine.ISLANDS, NodeLoss()),
        "islands, folders of the nodes": (ModelEngine.ISLANDS, NodeLoss(keeps_output=False)),
    }
    yield "| engine | s | s with a loss | times |"
    yield "|---|---|---|---|"
    for name, (engine, loss) in cases.items():
        whole, lossy = (
            simulate(engine, job, cluster, costs, blocks_per_cpu=blocks_per_cpu, loss=each).seconds
            for each in (None, loss)
        )
        yield f"| {name} | {whole:,.0f} | {lossy:,.0f} | {lossy / whole:.2f} |"


def format_agreement(points: Mapping[str, Sequence[Mapping[str, Any]]], costs: EngineCosts) -> Iterator[str]:
    """Yield a table of the formula and the measurements: the CPU of an item, and the rate with all CPUs.

    A run gets fewer CPUs if other programs use them, or if a stage has one worker and the others wait for it.
    """
    cpus = costs.machine["cpus"]
    cluster = ClusterSize(nodes=1, cpus_per_node=cpus, network_bytes_per_s=1e15, storage_bytes_per_s=1e15)
    yield "| engine | item | CPU ms an item | formula | error | CPUs that it got | items/s | formula, with all CPUs |"
    yield "|---|---|---|---|---|---|---|---|"
    for engine in (ModelEngine.LOCAL, ModelEngine.RAY):
        for values in points[engine.value]:
            point = CpuPoint(**values)
            yield _format_agreement(engine, point, cluster, costs)


def _format_agreement(engine: ModelEngine, point: CpuPoint, cluster: ClusterSize, costs: EngineCosts) -> str:
    job = make_measured_job(point)
    rate = predict_rate(engine, job, cluster, costs)
    cpu_s = get_total_cpu_s(engine, job, costs)
    cells = (
        f"{point.cpu_s * 1e3:.2f}",
        f"{cpu_s * 1e3:.2f}",
        f"{cpu_s / point.cpu_s - 1:+.0%}",
        f"{point.cpu_s * point.items_per_s:.1f}",
        f"{point.items_per_s:,.0f}",
        f"{rate:,.0f}",
    )
    return f"| {engine} | {format_bytes(point.nbytes)} | {' | '.join(cells)} |"


def make_page(page: str) -> str:
    """Return the page with the tables of the stored costs and rates between its markers."""
    costs, rates = load_costs(), json.loads(RESULTS.read_text())
    tables = {
        "least nodes": format_least_nodes(ClusterSize(**rates["cluster"]), costs),
        "agreement": format_agreement(json.loads(COSTS_FILE.read_text())["points"], costs),
        "rates": format_rates([_read_panel(**panel) for panel in rates["panels"]]),
    }
    for name, lines in tables.items():
        page = fill(page, name, "\n{}\n".format("\n".join(lines)))
    return page


def _read_panel(curves: Sequence[Mapping[str, Any]], **values: Any) -> ModelPanel:
    """Return a panel of the JSON, whose numbers of nodes are strings."""
    read = (
        ModelCurve(
            curve["name"],
            {int(nodes): rate for nodes, rate in curve["rates"].items()},
            {int(nodes): limit for nodes, limit in curve["limits"].items()},
        )
        for curve in curves
    )
    return ModelPanel(curves=tuple(read), **values)


def draw(panels: Sequence[ModelPanel], cluster: ClusterSize, path: Path) -> None:
    """Draw a panel for each size and work: items/s over nodes, with the machine's own rate as a line."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 9), layout="constrained")
    axes_list = drawing.subplots(len(SIZES_BYTES), len(WORKS_S), sharex=True, squeeze=False).flat
    for axes, panel in zip(axes_list, panels, strict=True):
        for curve in panel.curves:
            axes.plot(*zip(*curve.rates.items(), strict=True), "o-", ms=3.5, label=curve.name, c=_COLOURS[curve.name])
        axes.axhline(panel.local_rate, ls="--", c="#444444", lw=1, label="local, one machine")
        axes.axhline(panel.process_rate, ls=":", c="#444444", lw=1, label="one process")
        axes.set(xscale="log", yscale="log", title=panel.title, ylabel="items/s")
        axes.grid(alpha=0.3)
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    drawing.supxlabel(
        f"nodes, {cluster.cpus_per_node} CPUs each; network {cluster.network_bytes_per_s * 8e-9:g} Gbit/s a node, "
        f"storage {cluster.storage_bytes_per_s / 1e9:g} GB/s for all. A simulation from costs measured on two CPUs.",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_plot(drawing, path)


if __name__ == "__main__":
    main(sys.argv[1:])
