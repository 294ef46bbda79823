"""The outlook of a pipeline, from its first few items: what `stagepipe plan` says and `workers: auto` goes by. Pure.

probing     the plan of a probe run                glimpse   what its processes told of the items they sent
costs       what processes and hops cost an item   freight   how an item's pieces go, and at what price
pace        the rate that a layout gives           advise    the edits that raise it
survey      all of it as an `Outlook` (model)      table, drawing   for people
"""
