"""AdaViT under federated averaging: `model` has the gates, `device` trains them, `method` deals out the submodels."""

from cos2p_rivals.adavit.method import FedAvgAdaViT

__all__ = ["FedAvgAdaViT"]
