"""What the benchmarks share. It runs in the process that measures.

command   the machine, options, the last line, the JSON, rows of one figure each
figures   medians and ratios with their intervals; a target and its verdict; waits
turn      a contestant's turn in a new process; the order in a round; the processors of the two sides
usage     processor time and memory of processes
"""
