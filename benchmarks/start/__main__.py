"""Measure how soon stagepipe starts: the first item, a replaced worker, and the memory of three models.

    python -m benchmarks.start [--turns 7] [--only first,torch,restarts,memory] [--model-mb 400] [--json FILE]

first      pipelines of 3 and of 14 stages that do nothing. "warm" is the first item of a pipeline while the fork server
           of the process runs, from before `Pipeline(...)`. "first pipeline" is that of a new process, from before
           `from stagepipe import Pipeline`; the import is shown apart, and so is the sum with the start of Python.
torch      three stages with torch in a new process, start of Python included, against `import torch` in another new
           process beside it; and the second such pipeline of the process.
restarts   a worker is killed twice. From its death, as the supervisor saw it, until its successor has built its stages.
memory     three models of 400 MB at three ways, fed through `stagepipe.torch.Loader`: three stages here, against
           DataLoader with three workers that use all three models: "spawned", "forked" (each worker builds its
           models), and "inherited" (forked, with the models built in the parent before, so that all share one copy,
           which a model on a GPU, or one that starts threads, does not survive). The sum of the PSS of all processes,
           in steady state; all of these callers have torch imported, as a training process has.

Each contestant of a turn is a new process, alone; the order changes from turn to turn. Medians; brackets hold the
sign-test interval. Bytecode is written and read, as on a user's machine, whatever PYTHONDONTWRITEBYTECODE says: without
it every new interpreter compiles torch from source, which doubles both sides of that ratio. The first turn warms the
caches of files, bytecode and cost curves, and does not count.

Result on two cores of a Xeon (load average 1.4 to 2.0; the whole range in brackets), Linux 6.18, Python 3.11, torch
2.15; 5 turns. Restarts (3 turns) and memory (one) are of an earlier run.

    PASS  3 stages, warm, s <= 0.25: 0.054 [0.051, 0.060]
    PASS  14 stages, warm, s <= 0.4: 0.166 [0.163, 0.177]
    PASS  first pipeline of a process, with the import, s <= 0.6: 0.473 [0.409, 0.543]
    PASS  3 torch stages / import torch <= 1.3: 1.218 [0.724, 1.257]
    PASS  second pipeline of 3 torch stages, s <= 0.3: 0.094 [0.084, 0.106]
    PASS  worker back after its first death, s <= 0.1: 0.015 [0.015, 0.018]
    PASS  worker back after its second death, s <= 0.1: 0.016 [0.016, 0.021]
    PASS  memory / spawned DataLoader <= 0.45: 0.411
    PASS  memory / forked DataLoader <= 1.0: 0.491
    MISS  memory / forked DataLoader, models inherited <= 1.0: 1.295

Configs are checked without pydantic: with it, the first pipeline took 0.55, 0.67 and 0.64 s in three runs, without it
0.42, 0.55 and 0.47 s, in turn.

The caller takes 0.35 s of CPU time to the first item of its first pipeline; a quarter of it is NumPy. The models that a
forked DataLoader inherits share one torch with its caller; here the caller and the fork server have one each (300 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.common.targets import Target, is_met

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
    print(f"{time.monotonic() - began_s:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.json:
        document = {
            "command": repeat_command("start"),
            "machine": description,
            "samples": [[*contestant, figures] for contestant, figures in samples.items()],
            "targets": [target.line() for target in _targets(samples)],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _list_contestants(part: str, turn: int) -> Sequence[tuple[str, str]]:
    return () if part == "memory" and not 0 <= turn < _MAX_MEMORY_TURNS else PARTS[part]


def _measure(name: str, argument: str) -> dict[str, float]:
    folder = Path(__file__).parents[2]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks.start.child", name, str(time.perf_counter_ns()), argument]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=True)
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
        values = samples.get(contestant, {}).get(figure)
        if values is None:
            return
        measured = (
            estimate(values) if beside is None else ratio(values, samples[beside]["pss_mb" if "mb" in figure else "s"])
        )
        found.append(_judge(text, limit, measured))

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


def _judge(text: str, limit: float, measured: Estimate) -> Target:
    return Target(f"{text} <= {limit}", measured.text(3), is_met(measured, at_most=limit))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=7, help="turns that count")
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--model-mb", type=int, default=400, help="size of each of the three models")
    parser.add_argument("--json", type=Path, help="file for the figures of every turn")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PARTS:
            message = f"unknown part {name!r}; choose from {', '.join(PARTS)}"
            raise argparse.ArgumentTypeError(message)
    return names


if __name__ == "__main__":
    main(sys.argv[1:])
