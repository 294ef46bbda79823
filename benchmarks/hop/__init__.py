"""One hop. Workers import payload and pipelines; peers and shared_memory are the other contestants.

loop times small items alone in its process, schedule the bursts of all contestants, tables prints and judges.
"""
