"""Draws a report as one HTML file, or as a fragment for a notebook, without any resource outside it. Pure.

page         the file: head, style, script, and the sections in their order; the fragment
sections     the figures, the verdict, and what each section says
pipeline     the pipeline as a row of boxes
charts       shares and lines over time in SVG
markup       escaped elements and tables
summary.css  figures, verdict and pipeline, light and dark, wide and narrow: the style of the fragment
page.css     the rest of the page, and paper
script.js    the toggle of the theme, the copy button, all sections open while printing
"""

from stagepipe.report.render.html.page import render_html, render_notebook

__all__ = ["render_html", "render_notebook"]
