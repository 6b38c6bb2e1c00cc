"""The simulator against a plain loop of the same work, and its peers. `python -m benchmarks.simulator`."""
