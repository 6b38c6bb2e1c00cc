"""FedPM: masks of a random network.

`network` makes it the same everywhere, `device` trains the scores, `merge` counts bits, `method` deals the segments.
"""

from cos2p_rivals.fedpm.method import FedPM

__all__ = ["FedPM"]
