"""Methods, each with both its halves: what the server decides and what its devices do.

A method of one screen is a file (`fedavg`, `fedbuff`), a larger one a folder: `method` (which submodel, when to
aggregate), `device` (its trainer), `merge` (how updates become the next model), and what both sides share. `cos2p` is
the paper's; all others are small baselines and use nothing of it. `widths`, `adapters` and `frozen_base` are
what several have in common. The larger rivals are a package of their own, `cos2p_rivals`.

Everything that a method of your own needs is imported from here or from `cos2p`: docs/howto/add-a-method.md shows how,
docs/reference/method-names.md has a line for every name. A method builds on `training`, `aggregation` and `submodel`;
it knows nothing of clocks, files and networks. Runtime and fleet drive methods and are not imported by them.
"""

from cos2p.accelerator import place
from cos2p.aggregation.merge import Contribution, Merge, SegmentMerge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.costs.fitting import make_spec
from cos2p.costs.ledger import Ledger
from cos2p.errors import BudgetError, ConfigError, TrainingError, UpdateRefused
from cos2p.memory.parts import Part
from cos2p.messages import Order, Update
from cos2p.messages.envelope import TensorForm
from cos2p.methods.adapters.factors import Target
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.methods.device_method import DeviceMethod
from cos2p.methods.fedasync import MixingMerge, MixingSettings
from cos2p.methods.fedlora import AdapterMethod, AdapterMethodSettings
from cos2p.methods.fedrolex import FedRolex, FedRolexSettings
from cos2p.methods.frozen_base import FrozenBaseMethod, FrozenBaseSettings, LateWorkMethod, LateWorkSettings
from cos2p.methods.registry import (
    build_method,
    import_method,
    make_contract,
    make_trainer,
    method_class,
    method_settings,
    methods,
    run_task,
    trainer_class,
    trainers,
)
from cos2p.methods.widths import (
    AveragingMethod,
    AveragingSettings,
    WidthMethod,
    WidthSettings,
    random_spec,
    width_spec,
)
from cos2p.models.layout import Weights, exit_key, layout
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import Block, Context, Linear
from cos2p.numerics.optimizers import state_bytes
from cos2p.seeding import torch_rng
from cos2p.settings import Settings, shared
from cos2p.submodel.rates import SubmodelSize, cut, segment_costs, spread
from cos2p.submodel.segments import segment_norms, segmented
from cos2p.submodel.slicing import trained_shapes
from cos2p.training.contract import TaskContract
from cos2p.training.costs import TaskFlops, forward_flops, forward_memory
from cos2p.training.masks import Remembered
from cos2p.training.settings import ExtendedSettings, LocalSettings, OptimizerName
from cos2p.training.shard import Shard
from cos2p.training.trainer import Batch, Learned, SubmodelTrainer, Trainer

__all__ = [
    "AdapterMethod",
    "AdapterMethodSettings",
    "Assignment",
    "AveragingMethod",
    "AveragingSettings",
    "Batch",
    "Block",
    "BlockKeep",
    "BudgetError",
    "Call",
    "ConfigError",
    "Context",
    "Contribution",
    "DeviceMethod",
    "ExtendedSettings",
    "FedRolex",
    "FedRolexSettings",
    "Forms",
    "FrozenBaseMethod",
    "FrozenBaseSettings",
    "LateWorkMethod",
    "LateWorkSettings",
    "Learned",
    "Ledger",
    "Linear",
    "LocalSettings",
    "Member",
    "Merge",
    "Method",
    "MixingMerge",
    "MixingSettings",
    "OptimizerName",
    "Order",
    "Part",
    "Redispatch",
    "Remembered",
    "RunContext",
    "SegmentMerge",
    "Settings",
    "Shard",
    "SubmodelSize",
    "SubmodelSpec",
    "SubmodelTrainer",
    "Target",
    "TaskContract",
    "TaskFlops",
    "TensorForm",
    "Trainer",
    "TrainingError",
    "Trigger",
    "Update",
    "UpdateRefused",
    "Weights",
    "WidthMethod",
    "WidthSettings",
    "build_method",
    "cut",
    "exit_key",
    "forward_flops",
    "forward_memory",
    "import_method",
    "layout",
    "make_contract",
    "make_spec",
    "make_trainer",
    "method_class",
    "method_settings",
    "methods",
    "place",
    "random_spec",
    "run_task",
    "segment_costs",
    "segment_norms",
    "segmented",
    "shared",
    "spread",
    "state_bytes",
    "torch_rng",
    "trained_shapes",
    "trainer_class",
    "trainers",
    "width_spec",
]
