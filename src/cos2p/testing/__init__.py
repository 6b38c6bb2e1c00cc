"""For tests of methods: the contract that every method keeps (`check_method`), and a GPU that is not there.

from cos2p.testing import check_method

def test_fedprox() -> None:
    check_method("my_module:FedProx")
"""

from cos2p.testing.checks import CHECKS, check_method
from cos2p.testing.gpu import StandInGpu, stand_in_gpu

__all__ = ["CHECKS", "StandInGpu", "check_method", "stand_in_gpu"]
