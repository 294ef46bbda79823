"""The parts of benchmarks/crossover.

payload     the array that is sent, stagepipe's source of it, and the check of what arrived
peers       Pipe and RawArray behind one interface
pipelines   stagepipe in each mode behind the same interface
rounds      the repetitions of all contestants, size by size
verdict     the table of `auto` against the others, and the targets
drawing     the plot
"""
