"""Measure how soon stagepipe starts: the first item, a replaced worker, and the memory of three models.

    python -m benchmarks.start [--turns 7] [--only first,torch,restarts,memory] [--model-mb 400] [--json FILE]

first      pipelines of 3 and of 14 stages that do nothing. "warm": the fork server of the process runs already. "first
           pipeline": in a new process, from before `from stagepipe import Pipeline`, with the import and without.
torch      three stages with torch in a new process, against `import torch` in another new process beside it.
restarts   a worker is killed twice. From its death, as the supervisor saw it, until its successor has built its stages.
memory     PSS of three models of 400 MB through `stagepipe.torch.Loader`, against DataLoader with three workers that
           use all three: "spawned", "forked" (each builds its models), and "inherited" (built before the fork).

Each contestant of a turn is a new process, alone, in an order that changes. Bytecode is written and read, whatever
PYTHONDONTWRITEBYTECODE says. The first turn warms the caches and does not count.

The "inherited" models take less memory than stagepipe's (1.295 times in one run: its target is missed): they share one
torch with their caller, where stagepipe's caller and fork server have one each (300 MB).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.command import finish, machine, machine_line, parse_names, repeat_command
from benchmarks.common.figures import Target, estimate, is_met, ratio
from benchmarks.common.turn import make_environment

PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "first": (("first", "3"), ("first", "14")),
    "torch": (("torch", ""), ("first", "3 torch")),
    "restarts": (("restarts", ""),),
    "memory": (("memory", "stagepipe"), ("memory", "spawned"), ("memory", "forked"), ("memory", "inherited")),
}
_MAX_MEMORY_TURNS = 3
"""Memory varies by less than a percent, and a turn takes half a minute."""
_TIMEOUT_S = 300
Samples = dict[tuple[str, str], dict[str, list[float]]]


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    description, began_s = machine(), time.monotonic()
    print(machine_line(description), f"Repeat: {repeat_command('start')}\n", sep="\n", flush=True)
    samples: Samples = {}
    for turn in range(-1, options.turns):
        contestants = [each for part in options.only for each in _list_contestants(part, turn)]
        random.Random(turn).shuffle(contestants)
        for name, argument in contestants:
            figures = _measure(name, f"{argument} {options.model_mb}" if name == "memory" else argument)
            for figure, value in figures.items() if turn >= 0 else ():
                samples.setdefault((name, argument), {}).setdefault(figure, []).append(value)
    print(*_table(samples), "", *(target.line() for target in _targets(samples)), sep="\n")
    document = {
        "command": repeat_command("start"),
        "machine": description,
        "samples": [[*contestant, figures] for contestant, figures in samples.items()],
        "targets": [target.line() for target in _targets(samples)],
    }
    finish(began_s, options.json, document)


def _list_contestants(part: str, turn: int) -> Sequence[tuple[str, str]]:
    return () if part == "memory" and not 0 <= turn < _MAX_MEMORY_TURNS else PARTS[part]


def _measure(name: str, argument: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.start_child", name, str(time.perf_counter_ns()), argument]
    done = subprocess.run(command, env=make_environment(), stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _table(samples: Samples) -> list[str]:
    lines = []
    for (name, argument), figures in sorted(samples.items()):
        for figure, values in figures.items():
            digits = 0 if figure.endswith("_mb") else 3
            lines.append(f"{f'{name} {argument}':20} {figure:22} {estimate(values).text(digits)}")
    return lines


def _targets(samples: Samples) -> list[Target]:
    found: list[Target] = []

    def add(
        text: str, limit: float, contestant: tuple[str, str], figure: str, beside: tuple[str, str] | None = None
    ) -> None:
        if values := samples.get(contestant, {}).get(figure):
            base = samples[beside]["pss_mb" if "mb" in figure else "s"] if beside else None
            measured = ratio(values, base) if base else estimate(values)
            found.append(Target(f"{text} <= {limit}", measured.text(3), is_met(measured, at_most=limit)))

    add("3 stages, warm, s", 0.25, ("first", "3"), "warm_s")
    add("14 stages, warm, s", 0.4, ("first", "14"), "warm_s")
    add("first pipeline of a process, with the import, s", 0.6, ("first", "3"), "first_with_import_s")
    add("3 torch stages / import torch", 1.3, ("first", "3 torch"), "first_with_python_s", ("torch", ""))
    add("second pipeline of 3 torch stages, s", 0.3, ("first", "3 torch"), "second_s")
    add("worker back after its first death, s", 0.1, ("restarts", ""), "first_death_s")
    add("worker back after its second death, s", 0.1, ("restarts", ""), "second_death_s")
    add("memory / spawned DataLoader", 0.45, ("memory", "stagepipe"), "pss_mb", ("memory", "spawned"))
    add("memory / forked DataLoader", 1.0, ("memory", "stagepipe"), "pss_mb", ("memory", "forked"))
    add("memory / forked DataLoader, models inherited", 1.0, ("memory", "stagepipe"), "pss_mb", ("memory", "inherited"))
    return found


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=7, help="turns that count")
    parser.add_argument(
        "--only", type=parse_names(tuple(PARTS), "part"), default=list(PARTS), help=f"parts: {', '.join(PARTS)}"
    )
    parser.add_argument("--model-mb", type=int, default=400, help="size of each of the three models")
    parser.add_argument("--json", type=Path, help="file for the figures of every turn")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
