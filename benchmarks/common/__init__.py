"""The shared code of the benchmarks. It runs in the process that measures.

command     the machine, options, the first and the last lines of a run, its JSON
figures     medians and ratios with their intervals, tables of them; a target and its verdict; waits
page        tables in Markdown, the generated parts of a page, plots
stages      sources and stages for configs; torch_parts: the ones that import torch at the top of their module
turn        a contestant's turn in a new process; rounds; the processors of the two sides; processor time and memory
"""
