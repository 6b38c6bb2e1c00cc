"""Methods, each with both its halves: what the server decides and what its devices do.

A method of one screen is a file (`fedavg`, `fedbuff`), a larger one a folder: `method` (which submodel, when to
aggregate), `device` (its trainer), `merge` (how updates become the next model), and what both sides share. `cos2p` is
the paper's; all others are its rivals and use nothing of it. `widths`, `leading`, `side_tensors`, `segment_reports`,
`adapters`, `frozen_base` and `fitting` are what several have in common.

Everything that a method of your own needs is imported from here (docs/howto/add-a-method.md); it builds on `training`,
`aggregation` and `submodel`, and knows nothing of clocks, files and networks. Runtime and fleet drive methods and are
not imported by them.
"""

from cos2p.aggregation.merge import Contribution, Merge, SegmentMerge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.costs.fitting import make_spec
from cos2p.messages import Order, Update
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.methods.registry import (
    build_method,
    make_trainer,
    method_class,
    method_settings,
    methods,
    run_task,
    trainers,
)
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.settings import Settings, shared
from cos2p.submodel.rates import cut
from cos2p.training.masks import Remembered
from cos2p.training.settings import LocalSettings
from cos2p.training.submodel_trainer import SubmodelTrainer
from cos2p.training.trainer import Batch, Learned, Trainer

__all__ = [
    "Assignment",
    "Batch",
    "BlockKeep",
    "Call",
    "Contribution",
    "Forms",
    "Learned",
    "LocalSettings",
    "Member",
    "Merge",
    "Method",
    "Order",
    "Redispatch",
    "Remembered",
    "RunContext",
    "SegmentMerge",
    "Settings",
    "SubmodelSpec",
    "SubmodelTrainer",
    "Trainer",
    "Trigger",
    "Update",
    "Weights",
    "build_method",
    "cut",
    "make_spec",
    "make_trainer",
    "method_class",
    "method_settings",
    "methods",
    "run_task",
    "shared",
    "torch_rng",
    "trainers",
]
