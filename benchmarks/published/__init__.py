"""The measurements of five write-ups, repeated. `__main__` runs them, make_page writes docs/benchmarks.md.

model, registry, running, results, write_ups, forms, tables, verdicts and plots run in the process of the benchmark;
turn, needs, child (a contestant's other process), asking (stagepipe's side) and the experiments, e1 to e5, in a turn.
E3 is benchmarks/crossover.
"""
