"""cos2p: train one large transformer on many weak, unequal devices.

Names are loaded when they are first used, so that the command line starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cos2p.api import Run as Run
    from cos2p.api import Study as Study
    from cos2p.api import compare as compare
    from cos2p.api import finetune as finetune
    from cos2p.api import open as open
    from cos2p.api import run as run
    from cos2p.api import wrap as wrap
    from cos2p.costs.fitting import fit_submodel as fit_submodel
    from cos2p.costs.fitting import make_spec as make_spec
    from cos2p.data import DataConfig as DataConfig
    from cos2p.errors import Cos2pError as Cos2pError
    from cos2p.methods.base import Method as Method
    from cos2p.models.config import ModelConfig as ModelConfig
    from cos2p.models.hub import load_pretrained as load_pretrained
    from cos2p.models.hub import save_pretrained as save_pretrained
    from cos2p.models.layout import init_weights as init_weights
    from cos2p.models.sizes import model_config as model_config
    from cos2p.models.spec import SubmodelSpec as SubmodelSpec
    from cos2p.models.transformer import ElasticTransformer as ElasticTransformer
    from cos2p.numerics.optimizers import make_optimizer as make_optimizer
    from cos2p.recipe import Recipe as Recipe
    from cos2p.submodel.slicing import extract as extract
    from cos2p.submodel.slicing import extract_prefix as extract_prefix
    from cos2p.submodel.slicing import scatter as scatter

_HOMES = {
    "Cos2pError": "errors",
    "DataConfig": "data",
    "ElasticTransformer": "models.transformer",
    "Method": "methods.base",
    "ModelConfig": "models.config",
    "Recipe": "recipe",
    "Run": "api",
    "Study": "api",
    "SubmodelSpec": "models.spec",
    "compare": "api",
    "extract": "submodel.slicing",
    "extract_prefix": "submodel.slicing",
    "finetune": "api",
    "fit_submodel": "costs.fitting",
    "init_weights": "models.layout",
    "load_pretrained": "models.hub",
    "make_optimizer": "numerics.optimizers",
    "make_spec": "costs.fitting",
    "model_config": "models.sizes",
    "open": "api",
    "run": "api",
    "save_pretrained": "models.hub",
    "scatter": "submodel.slicing",
    "wrap": "api",
}

# `open` is public too; a star import must not hide Python's own.
__all__ = sorted({*_HOMES, "__version__"} - {"open"})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
