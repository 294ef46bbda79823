"""Draws a report as one HTML file, without any resource outside it. Pure. Reads the `Report` alone.

page        the file: head, style, script, and the sections in their order
sections    what each section says
pipeline    the pipeline as a chain of boxes
charts      lines, areas and histograms in SVG
markup      escaped elements and tables
style.css   light, dark, narrow and printed
script.js   the toggle of the theme, the copy button, all sections open while printing
"""

from stagepipe.report.render.html.page import render_html

__all__ = ["render_html"]
