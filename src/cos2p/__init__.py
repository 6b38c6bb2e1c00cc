"""cos2p: train one large transformer on many weak, unequal devices."""

from __future__ import annotations

from cos2p.models.config import ModelConfig
from cos2p.models.sizes import model
from cos2p.submodel.spec import SubmodelSpec

__version__ = "0.1.0"
__all__ = ["ModelConfig", "SubmodelSpec", "__version__", "model"]
