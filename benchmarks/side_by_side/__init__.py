"""What the benchmarks share.

figures   medians and ratios with their intervals
machine   what was measured on, and with what
turns     who is timed when
placing   which processors the two sides run on
targets   a promise, what was measured, and the verdict
"""
