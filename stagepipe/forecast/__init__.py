"""Forecasts a pipeline from a probe of its first few items, for `stagepipe plan` and `workers: auto`.

Pure; everything runs in the caller's process.

model           the forecast as values, and its JSON
build           makes the forecast from a plan and its probe
costs           cost of each process and hop per source item
payload         pieces of a hop's typical item, and the mode and cost of each
throughput      items per second of a layout of processes, and its bottleneck
advice          config changes that raise the throughput; chooses workers
render/         tables for the terminal, Mermaid and SVG graphs
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.forecast.advice import ResourceBudget, choose_workers, describe_bottleneck
    from stagepipe.forecast.build import MIN_PROBED_ITEMS, TOO_FEW_ITEMS_REASON, build_forecast
    from stagepipe.forecast.costs import PipelineCosts, compute_costs
    from stagepipe.forecast.model import Forecast, to_json
    from stagepipe.forecast.render import render_forecast, render_mermaid, render_svg
    from stagepipe.forecast.throughput import compute_work_ns, make_layout

__all__ = [
    "MIN_PROBED_ITEMS",
    "TOO_FEW_ITEMS_REASON",
    "Forecast",
    "PipelineCosts",
    "ResourceBudget",
    "build_forecast",
    "choose_workers",
    "compute_costs",
    "compute_work_ns",
    "describe_bottleneck",
    "make_layout",
    "render_forecast",
    "render_mermaid",
    "render_svg",
    "to_json",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Forecast": "model",
        "MIN_PROBED_ITEMS": "build",
        "PipelineCosts": "costs",
        "ResourceBudget": "advice",
        "TOO_FEW_ITEMS_REASON": "build",
        "build_forecast": "build",
        "choose_workers": "advice",
        "compute_costs": "costs",
        "compute_work_ns": "throughput",
        "describe_bottleneck": "advice",
        "make_layout": "throughput",
        "render_forecast": "render",
        "render_mermaid": "render",
        "render_svg": "render",
        "to_json": "model",
    },
)
