"""The parts of benchmarks/hop.py.

payload     what travels, how the receiver touches it, and the check that it arrived right
feeds       stagepipe's sources and its middle stage: what runs in its workers
peers       Pipe, Queue, SharedMemory and DataLoader behind one interface
pipelines   stagepipe behind the same interface
timing      a burst: microseconds and CPU microseconds an item, in the steady state
schedule    who is timed when
tables      what is printed
targets     what the figures must be
"""
