"""What the benchmarks share. It runs in the process that measures.

command     the machine, options, the first and the last lines of a run, its JSON
figures     medians and ratios with their intervals, the printed table of them; a target and its verdict; waits
page        tables in Markdown, a page's parts that are made, plots
stages      sources and stages for configs; torch_parts: those that need torch at the top of their module
turn        a contestant's turn in a new process; rounds; the processors of the two sides; processor time and memory
"""
