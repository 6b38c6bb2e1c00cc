"""FedMeZO: training by forward passes alone.

`steps` is the arithmetic both sides share, `device` takes them, `method` deals the submodels and replays the steps.
"""

from cos2p_rivals.fedmezo.method import FedMeZO

__all__ = ["FedMeZO"]
