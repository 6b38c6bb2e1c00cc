"""Q-ViT under federated averaging.

`quantizers` and `model` are the quantised network, `teacher` what it learns from, `wire` what travels; `device` trains,
`merge` decodes, `method` chooses the bits.
"""

from cos2p_rivals.qvit.method import FedAvgQViT

__all__ = ["FedAvgQViT"]
