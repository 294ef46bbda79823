"""`stagepipe bench`: measures a hop of this machine in detail, side by side with multiprocessing.

measuring  runs all measurements in interleaved rounds within a time budget
result     cost by mechanism and size, the curves, the crossover; as JSON, a table and a plot
"""

from stagepipe.bench.measuring import FULL_BUDGET, QUICK_BUDGET, run_bench
from stagepipe.bench.result import check_output_path, check_plot_paths, draw_plots, render_bench, to_json

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
