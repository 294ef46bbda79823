"""The parts of benchmarks/hop.

payload     the item that is sent, how the receiver touches it, and the check of what arrived
feeds       stagepipe's sources and its middle stage, which run in its workers
peers       Pipe, Queue, SharedMemory and DataLoader behind one interface
fifo, loans faster-fifo and iceoryx2 behind the same interface, where they are installed
pipelines   stagepipe behind the same interface
stream      DataLoader's dataset, which runs in its worker
timing      a burst: microseconds and CPU microseconds per item, in the steady state
loop        a loop over small items, alone in its process: what a user sees
schedule    the rounds: every contestant's bursts, size by size
tables      the printed tables
targets     the limits that the figures must meet
"""
