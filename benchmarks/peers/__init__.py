"""FedAvg on the same shards with other simulators, in an environment of their own. See `benchmarks.simulator`."""
