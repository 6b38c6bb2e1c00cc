"""The paper's convergence theorem against a problem whose gradient is known. `python -m benchmarks.convergence`."""
