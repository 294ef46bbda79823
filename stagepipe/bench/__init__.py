"""`stagepipe bench`: measures a hop of this machine in detail, side by side with multiprocessing.

model       the result: cost by mechanism and size, the curves, the crossover. Pure
peers       measures multiprocessing's Pipe, Queue and SharedMemory
producer    the process that sends their messages
schedule    runs all measurements in interleaved rounds within a time budget
table       renders the result for the terminal
plot        draws the result with matplotlib
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.bench.model import check_output_path, to_json
    from stagepipe.bench.plot import check_plot_paths, draw_plots
    from stagepipe.bench.schedule import FULL_BUDGET, QUICK_BUDGET, run_bench
    from stagepipe.bench.table import render_bench

__all__ = [
    "FULL_BUDGET",
    "QUICK_BUDGET",
    "check_output_path",
    "check_plot_paths",
    "draw_plots",
    "render_bench",
    "run_bench",
    "to_json",
]

__getattr__ = lazy_names(
    __name__,
    {
        "FULL_BUDGET": "schedule",
        "QUICK_BUDGET": "schedule",
        "check_output_path": "model",
        "check_plot_paths": "plot",
        "draw_plots": "plot",
        "render_bench": "table",
        "run_bench": "schedule",
        "to_json": "model",
    },
)
