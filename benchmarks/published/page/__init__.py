"""The results as docs/benchmarks.md: tables, plots and prose. It runs in the process of benchmarks.published.make_page.

forms            durations, ratios and tables as text
verdicts         the targets, and the contestants that are faster than stagepipe
e1 e2 e3 e4 e5   the tables of each experiment
words            the prose: each experiment, its meaning for a user, and why a contestant is faster
text             the whole page in order
drawing          the plots
"""
