"""Forecasts a pipeline from a probe of its first few items, for `stagepipe plan` and `workers: auto`.

Pure; everything runs in the caller's process.

model         the forecast as values, and its JSON
build         makes the forecast from a plan and its probe
cost_values   the costs of processes and hops, and the machine's budget, as values
costs         the cost of each process, hop and sink, from a probe or from the record of a whole run
payload       the typical item of a hop, and how many items share a packet
layout        items per second of a layout of processes, and the best layout
advice        config changes that raise the throughput, and a reason for each choice
scaling       decides which stage gets or loses a worker during a run
what_if       estimates the effect of other settings, for the report of a run
table         the tables for the terminal
graph         Mermaid and SVG graphs
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.forecast.advice import describe_auto_workers, describe_bottleneck, explain_layout
    from stagepipe.forecast.build import ProbeFigures, build_forecast
    from stagepipe.forecast.cost_values import PipelineCosts, ResourceBudget, compute_expected_cpus
    from stagepipe.forecast.costs import (
        PartSample,
        add_layout_rules,
        compute_costs,
        compute_sink_costs,
        find_missing_items,
        fits_plan,
        make_unmeasured_costs,
    )
    from stagepipe.forecast.graph import render_mermaid, render_svg
    from stagepipe.forecast.layout import ProcessChoice, ProcessLayout, choose_layout, count_max_workers, make_layout
    from stagepipe.forecast.model import Forecast, to_json
    from stagepipe.forecast.scaling import Decision, ScalingPolicy, ScalingSample, make_scaling_groups
    from stagepipe.forecast.table import render_forecast
    from stagepipe.forecast.what_if import estimate_changes

__all__ = [
    "Decision",
    "Forecast",
    "PartSample",
    "PipelineCosts",
    "ProbeFigures",
    "ProcessChoice",
    "ProcessLayout",
    "ResourceBudget",
    "ScalingPolicy",
    "ScalingSample",
    "add_layout_rules",
    "build_forecast",
    "choose_layout",
    "compute_costs",
    "compute_expected_cpus",
    "compute_sink_costs",
    "count_max_workers",
    "describe_auto_workers",
    "describe_bottleneck",
    "estimate_changes",
    "explain_layout",
    "find_missing_items",
    "fits_plan",
    "make_layout",
    "make_scaling_groups",
    "make_unmeasured_costs",
    "render_forecast",
    "render_mermaid",
    "render_svg",
    "to_json",
]

__getattr__ = lazy_names(__name__, __file__)
