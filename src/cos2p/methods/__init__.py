"""Methods, each with both its halves: what the server decides and what its devices do.

A method of one screen is a file (`fedavg`, `fedrolex`), a larger one a folder: `method` (which submodel, when to
aggregate), `device` (its trainer), `merge` (how updates become the next model), and what both sides share. `cos2p` is
the paper's; all others are small baselines and use nothing of it. `widths`, `adapters` and `frozen_base` are
what several have in common. The larger rivals are a package of their own, `cos2p_rivals`.

Everything that a method of your own needs is imported from here or from `cos2p`: docs/howto/add-a-method.md shows how,
docs/reference/method-names.md has a line for every name. A method builds on `training`, `aggregation` and `submodel`;
it knows nothing of clocks, files and networks. Runtime and fleet drive methods and are not imported by them.
"""

from types import ModuleType as _Module

from cos2p.accelerator import place as place
from cos2p.aggregation.merge import Contribution as Contribution
from cos2p.aggregation.merge import Merge as Merge
from cos2p.aggregation.merge import SegmentMerge as SegmentMerge
from cos2p.aggregation.settings import Redispatch as Redispatch
from cos2p.aggregation.triggers import Trigger as Trigger
from cos2p.aggregation.weights import even_weight as even_weight
from cos2p.costs.fitting import make_spec as make_spec
from cos2p.costs.ledger import Ledger as Ledger
from cos2p.errors import BudgetError as BudgetError
from cos2p.errors import ConfigError as ConfigError
from cos2p.errors import TrainingError as TrainingError
from cos2p.errors import UpdateRefused as UpdateRefused
from cos2p.memory.parts import Part as Part
from cos2p.messages import Order as Order
from cos2p.messages import Update as Update
from cos2p.messages.envelope import TensorForm as TensorForm
from cos2p.methods.adapters.factors import Target as Target
from cos2p.methods.base import Assignment as Assignment
from cos2p.methods.base import Call as Call
from cos2p.methods.base import Forms as Forms
from cos2p.methods.base import HeadSettings as HeadSettings
from cos2p.methods.base import Member as Member
from cos2p.methods.base import Method as Method
from cos2p.methods.base import RunContext as RunContext
from cos2p.methods.device_method import DeviceMethod as DeviceMethod
from cos2p.methods.fedlora import AdapterMethod as AdapterMethod
from cos2p.methods.fedlora import AdapterMethodSettings as AdapterMethodSettings
from cos2p.methods.fedrolex import FedRolex as FedRolex
from cos2p.methods.fedrolex import FedRolexSettings as FedRolexSettings
from cos2p.methods.frozen_base import FrozenBaseMethod as FrozenBaseMethod
from cos2p.methods.frozen_base import FrozenBaseSettings as FrozenBaseSettings
from cos2p.methods.frozen_base import LateWorkMethod as LateWorkMethod
from cos2p.methods.frozen_base import LateWorkSettings as LateWorkSettings
from cos2p.methods.registry import build_method as build_method
from cos2p.methods.registry import import_method as import_method
from cos2p.methods.registry import make_contract as make_contract
from cos2p.methods.registry import make_trainer as make_trainer
from cos2p.methods.registry import method_class as method_class
from cos2p.methods.registry import method_settings as method_settings
from cos2p.methods.registry import methods as methods
from cos2p.methods.registry import run_task as run_task
from cos2p.methods.registry import trainer_class as trainer_class
from cos2p.methods.registry import trainers as trainers
from cos2p.methods.widths import AveragingMethod as AveragingMethod
from cos2p.methods.widths import AveragingSettings as AveragingSettings
from cos2p.methods.widths import WidthMethod as WidthMethod
from cos2p.methods.widths import WidthSettings as WidthSettings
from cos2p.methods.widths import random_spec as random_spec
from cos2p.methods.widths import width_spec as width_spec
from cos2p.models.layout import Weights as Weights
from cos2p.models.layout import exit_key as exit_key
from cos2p.models.layout import layout as layout
from cos2p.models.spec import BlockKeep as BlockKeep
from cos2p.models.spec import SubmodelSpec as SubmodelSpec
from cos2p.models.transformer import Block as Block
from cos2p.models.transformer import Context as Context
from cos2p.models.transformer import Linear as Linear
from cos2p.numerics.optimizers import state_bytes as state_bytes
from cos2p.seeding import torch_rng as torch_rng
from cos2p.settings import Settings as Settings
from cos2p.settings import shared as shared
from cos2p.submodel.rates import SubmodelSize as SubmodelSize
from cos2p.submodel.rates import cut as cut
from cos2p.submodel.rates import segment_costs as segment_costs
from cos2p.submodel.rates import spread as spread
from cos2p.submodel.segments import expand as expand
from cos2p.submodel.segments import segment_norms as segment_norms
from cos2p.submodel.segments import segmented as segmented
from cos2p.submodel.slicing import trained_shapes as trained_shapes
from cos2p.submodel.slicing import window_slices as window_slices
from cos2p.training.contract import TaskContract as TaskContract
from cos2p.training.costs import TaskFlops as TaskFlops
from cos2p.training.costs import forward_flops as forward_flops
from cos2p.training.costs import forward_memory as forward_memory
from cos2p.training.masks import Remembered as Remembered
from cos2p.training.settings import ExtendedSettings as ExtendedSettings
from cos2p.training.settings import LocalSettings as LocalSettings
from cos2p.training.settings import OptimizerName as OptimizerName
from cos2p.training.shard import Shard as Shard
from cos2p.training.trainer import OPTIMIZATIONS as OPTIMIZATIONS
from cos2p.training.trainer import Batch as Batch
from cos2p.training.trainer import Learned as Learned
from cos2p.training.trainer import SubmodelTrainer as SubmodelTrainer
from cos2p.training.trainer import Trainer as Trainer

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))
