"""The results as tables, plots and words: docs/benchmarks.md.

forms      durations, ratios, tables
verdicts   who is ahead of stagepipe, and by how much
e1 e2 e3 e4 e5   the tables of each experiment
words      what an experiment means for a user, and why a contestant is ahead
text       all of it in order
drawing    the plots
"""
