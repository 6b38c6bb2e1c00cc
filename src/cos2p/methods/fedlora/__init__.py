"""Federated LoRA: low-rank adapters beside frozen matrices, the base streamed block by block (see `method`)."""

from cos2p.methods.fedlora.method import FedLora as FedLora
from cos2p.methods.fedlora.method import LinearProbe as LinearProbe
