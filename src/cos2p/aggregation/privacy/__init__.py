"""Differential privacy for devices: what a run discloses of any one device's data is bounded, and the bound is counted.

    device    clip       the whole update to norm C (and add noise, where the server is not trusted: `local`)
    server    checks     sums with noise σC (`central`), over a denominator that was fixed beforehand
              account    how often each device really took part ──► ε(δ); nobody is asked beyond the budget

Neighbouring runs differ in the samples of one device: with its updates, or with nothing in their place. Who takes part,
when, and which segments it trains is not hidden; it depends on names, seeds, speeds and the number of samples.
"""
