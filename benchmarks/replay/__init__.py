"""A workload trace over sockets, beside its simulation."""
