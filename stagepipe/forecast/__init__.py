"""Forecasts a pipeline from a probe of its first few items, for `stagepipe plan` and `workers: auto`.

Pure; everything runs in the caller's process.

model           the forecast as values, and its JSON
build           makes the forecast from a plan and its probe
cost_values     the costs of processes and hops as values
item_flow       how many items reach each process in a long run
coverage        what the probe did not reach, so that the rate is not known
costs           cost of each process and hop per source item
sink_costs      cost of a sink with workers per row
packets         hops that carry several items in a packet
payload         pieces of a hop's typical item, and the mode and cost of each
throughput      items per second of a layout of processes, and its bottleneck
layout_rules    what a plan allows a layout to do with its processes
budget          CPUs and memory that a plan may use
layout_search   the best layout: which stages share a process, and how many workers each has
explanation     a reason for each choice of the layout
run_costs       cost of each process and hop, from the record of a whole run
what_if         what other settings would have given, for the report of a run
advice          config changes that raise the throughput, step by step
hop_modes       hops whose mode is forced at a loss
render/         tables for the terminal, Mermaid and SVG graphs
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.forecast.advice import describe_bottleneck
    from stagepipe.forecast.budget import ResourceBudget, compute_expected_cpus
    from stagepipe.forecast.build import ProbeFigures, build_forecast
    from stagepipe.forecast.cost_values import PipelineCosts
    from stagepipe.forecast.costs import compute_costs
    from stagepipe.forecast.coverage import find_missing_items
    from stagepipe.forecast.explanation import explain_layout
    from stagepipe.forecast.layout_rules import add_layout_rules, fits_plan
    from stagepipe.forecast.layout_search import ProcessChoice, choose_layout
    from stagepipe.forecast.model import Forecast, to_json
    from stagepipe.forecast.render import render_forecast, render_mermaid, render_svg
    from stagepipe.forecast.sink_costs import PartSample, SinkCost, compute_sink_costs
    from stagepipe.forecast.throughput import ProcessLayout, make_layout
    from stagepipe.forecast.what_if import estimate_changes

__all__ = [
    "Forecast",
    "PartSample",
    "PipelineCosts",
    "ProbeFigures",
    "ProcessChoice",
    "ProcessLayout",
    "ResourceBudget",
    "SinkCost",
    "add_layout_rules",
    "build_forecast",
    "choose_layout",
    "compute_costs",
    "compute_expected_cpus",
    "compute_sink_costs",
    "describe_bottleneck",
    "estimate_changes",
    "explain_layout",
    "find_missing_items",
    "fits_plan",
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
        "PartSample": "sink_costs",
        "PipelineCosts": "cost_values",
        "ProbeFigures": "build",
        "ProcessChoice": "layout_search",
        "ProcessLayout": "throughput",
        "ResourceBudget": "budget",
        "SinkCost": "sink_costs",
        "add_layout_rules": "layout_rules",
        "build_forecast": "build",
        "choose_layout": "layout_search",
        "compute_costs": "costs",
        "compute_expected_cpus": "budget",
        "compute_sink_costs": "sink_costs",
        "describe_bottleneck": "advice",
        "estimate_changes": "what_if",
        "explain_layout": "explanation",
        "find_missing_items": "coverage",
        "fits_plan": "layout_rules",
        "make_layout": "throughput",
        "render_forecast": "render",
        "render_mermaid": "render",
        "render_svg": "render",
        "to_json": "model",
    },
)
