"""What the benchmarks share. It runs in the process that measures.

command     the machine, options, the first and the last lines of a run, its JSON
comparison  contestants in rounds, and the printed table of their figures
figures     medians and ratios with their intervals; a target and its verdict; waits
page        tables in Markdown, a page's parts that are made, plots
turn        a contestant's turn in a new process; the order in a round; the processors of the two sides
usage       processor time and memory of processes
"""
