"""One hop. Workers import payload, feeds and stream; peers, fifo and loans are the contestants of other packages.

loop times small items alone in its process, schedule the bursts of all contestants, tables prints and judges.
"""
