"""E3, pipe and shared memory by size: payload, peers, rounds (with stagepipe), verdict and drawing."""
