"""What the benchmarks share.

figures   medians and ratios with their intervals
machine   what was measured on, and with what
turns     who is timed when
targets   a promise, what was measured, and the verdict
"""
