"""Benchmarks: each prints ratios to its rival or its limit, taken in one run. `python -m benchmarks.<name>`."""
