"""Renders a forecast for people, in the caller's process.

table           tables for the terminal, with rich
graph           Mermaid text and SVG
"""

from stagepipe.forecast.render.graph import render_mermaid, render_svg
from stagepipe.forecast.render.table import render_forecast

__all__ = ["render_forecast", "render_mermaid", "render_svg"]
