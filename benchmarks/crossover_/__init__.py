"""The parts of benchmarks/crossover.py.

payload     the array that travels, and the check that it arrived right
feeds       stagepipe's source: what runs in its worker
peers       Pipe and RawArray behind one interface
pipelines   stagepipe in each mode behind the same interface
rounds      size by size: everybody's repetitions in turns
verdict     the table of `auto` against the others, and the targets
drawing     the plot
"""
