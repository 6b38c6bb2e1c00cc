"""`Trainer`: what a device does with a task. One object serves one order; `TaskContract` says what the task is.

features ← frozen prefix, once
masks    ← scored and trained on the candidates, the best are kept          (`SubmodelTrainer`, if the task has quotas)
weights  ← E epochs over the exits, the deepest teaching the others
scores   ← the personal submodel on the local test part

A method with a device half of its own derives from it and overrides what differs; there is one loop for all:

    prepare      which submodel of what was sent is trained
    build        the model
    begin        it is ready, nothing has happened yet
      forward, loss, objective      a batch: outputs, the loss that is reported, what is minimised
      before_step                   the gradients are there, the optimiser has not used them
      after_step                    the weights have changed; the gradients are still there
    end          what the device has to report
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from cos2p.accelerator import CPU, place, place_all
from cos2p.data.examples import Examples
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, trainable
from cos2p.numerics.backward_step import recompute, stepping_in_backward
from cos2p.numerics.optimizers import make_optimizer
from cos2p.numerics.output_table import SMALL
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import narrow
from cos2p.training.client_cache import ClientCache, data_digest
from cos2p.training.contract import TaskContract, unpacked
from cos2p.training.costs import mask_samples
from cos2p.training.embeddings import check_rows
from cos2p.training.evaluation import evaluate
from cos2p.training.losses import (
    Losses,
    MicroBatches,
    add_up,
    counted,
    exits_loss,
    loss_of_tokens,
    reads_in_parts,
    with_own_shares,
)
from cos2p.training.masks import MaskTrainer, MicroBatch, Remembered, Trained, begin_from_scores, choose
from cos2p.training.personal import write_personal
from cos2p.training.prefix import (
    CachedFeatures,
    Features,
    FreshFeatures,
    KeptFeatures,
    PrefixFile,
    StreamedSuffix,
    TextFeatures,
    features_at,
    part_of,
    prefix_features,
)
from cos2p.training.rate_trial import at_own_rate, give, reported, try_rates
from cos2p.training.settings import ExtendedSettings, LocalSettings, settled
from cos2p.training.shard import Shard, shuffled

Support = Literal["stream", "step_in_backward", "eight_bit", "recompute", "micro_batch"]

OPTIMIZATIONS: frozenset[Support] = frozenset({"step_in_backward", "eight_bit", "recompute", "micro_batch"})
"""All memory optimizations of `training.memory_optimizations` but `stream`, which is for adapters."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of the training samples."""

    rows: Tensor
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Learned:
    """A device's report when its training is over."""

    delta: Weights
    """w_start − w_end of what comes back as numbers."""
    extras: Weights = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)
    """Figures for the log, next to the loss and the scores."""


class Trainer:
    """Plain training of the submodel that was sent; base of all others."""

    name: ClassVar[str]
    """As it stands in orders."""
    contract_type: ClassVar[type[TaskContract]] = TaskContract
    """Answers the server's questions about its tasks."""
    settings_type: ClassVar[type[LocalSettings] | type[ExtendedSettings]] = LocalSettings
    supports: ClassVar[Set[Support]] = OPTIMIZATIONS
    """The optimizations that give the right results with this trainer. A class does not inherit it: one that declares
    nothing trains without. `check_method` of `cos2p.testing` finds a wrong declaration.

    step_in_backward   one optimiser; nobody looks at the gradients of a step
    eight_bit          the optimisers are those of `optimizers` here
    recompute          the model is that of `build` here: `recompute` changes how its blocks run
    micro_batch        what is minimised for a batch is the mean of what is minimised for its samples
    """

    contract: TaskContract
    settings: LocalSettings | ExtendedSettings
    # While a task is being done:
    task: Task
    shard: Shard
    remembered: Remembered
    """The device's memory between its tasks: to be read and written, tensors are not to be changed in place."""
    rng: torch.Generator
    """The source of all randomness of the task: on the host, so that a draw has to be placed where it is used."""
    device: torch.device = CPU
    """Where the task is computed. `task.weights`, `remembered`, `start`, features and batches are there; row numbers
    and the frozen parts, until they are asked for, are on the host."""
    features: Features | None
    """Features of the training samples behind the frozen prefix; None if nothing is frozen."""
    start: Weights
    """The trained tensors, as they came."""
    model: ElasticTransformer
    client_cache: ClientCache | None = None
    """Frozen parts and features of earlier tasks, if the device keeps any."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "supports" not in vars(cls):
            cls.supports = frozenset()

    def __init__(self, config: ModelConfig, order: Order) -> None:
        self.contract = contract = self.contract_of(config, order)
        self.config, self.order, self.settings = contract.config, contract.order, contract.settings

    @classmethod
    def contract_of(cls, config: ModelConfig, order: Order) -> TaskContract:
        """The contract of an order to this trainer, with the memory optimizations that it supports."""
        given = cls.settings_type.model_validate(order.settings)
        return cls.contract_type(config, order, settled(given, *({"stream", *OPTIMIZATIONS} - cls.supports)))

    @property
    def local(self) -> LocalSettings:
        """Epochs, batch and the like."""
        return self.contract.local

    # ------------------------------------------------------------ on the device

    def run(
        self,
        task: Task,
        shard: Shard,
        remembered: Remembered,
        client_cache: ClientCache | None = None,
        device: torch.device = CPU,
    ) -> tuple[Update, Remembered]:
        """Do the task on `device`. Returns the update and what is remembered now, both on the host; what was given is
        not changed."""
        self.client_cache, self.device = client_cache, device
        check_rows(self.order.spec, shard)
        if self.order.label_skew == "logit-adjustment":
            task = with_own_shares(self.config, task, shard.train.labels)
        self.task = replace(task, weights=place_all(task.weights, device))
        self.remembered = place_all(remembered, device)
        self.shard = shard.for_task(self.order.seed, self.order.client, self.order.attempt)
        self.rng = torch_rng(self.order.seed, "device", self.order.client, self.order.attempt)
        stored = self._store_parts()
        update = self.train()
        if not stored:
            update = replace(update, report={**update.report, "uncached": 1})
        if device.type != "cpu":
            update = replace(update, delta=place_all(update.delta, CPU), extras=place_all(update.extras, CPU))
        return update, place_all(self.remembered, CPU)

    def given(self, own: bool = False) -> Weights:
        """The task's weights as numbers. Where they travelled in fewer bits they are made anew with every call, and
        what came stays as it is: of candidates for masks a part is wanted, and all of them would take more memory than
        the training has. `own`: what is done to them does not reach those that came, nor their file."""
        if self.order.wire.down != "float32":
            return unpacked(self.task.weights)
        return {name: tensor.clone() for name, tensor in self.task.weights.items()} if own else self.task.weights

    def _store_parts(self) -> bool:
        """Put aside what came with the task and is wanted again; False if there is no room for all of it."""
        cached, client_cache = self.order.cached, self.client_cache
        if cached is None or (client_cache is not None and not client_cache.parts):
            return True
        if client_cache is None:
            return False
        client_cache.begin(cached.parts[key] for key in cached.held)
        came = [part_of(self.task.prefix, key) for key in sorted(cached.parts.keys() - cached.held)]
        return sum(map(client_cache.put, came)) == len(came)

    def _frozen(self) -> PrefixFile:
        cached = self.order.cached
        if cached is None or not cached.held:
            return PrefixFile(self.task.prefix, device=self.device)
        held = {key: cached.parts[key] for key in cached.held}
        return PrefixFile(self.task.prefix, held, self.client_cache, self.device, self.contract.frozen())

    def train(self) -> Update:
        self.features = self.shard_features(self.shard.train)
        report: dict[str, float] = {"prefix_recomputed": 1} if isinstance(self.features, FreshFeatures) else {}
        spec, self.start = self.prepare(report)
        if self.order.rates:
            report |= reported(try_rates(self, spec))
            give(self, at_own_rate(self.order, report))
        self.model = self.build(spec)
        self.model.train()
        self.begin()
        report["loss"] = self.fit()
        learned = self.end()
        report |= {**learned.report, **self.scores()}
        order, samples = self.order, len(self.shard.train)
        return Update(order.client, order.task, order.version, spec, learned.delta, samples, report, learned.extras)

    def fit(self) -> float:
        """E epochs on the model, in place. Returns the mean loss of the last one."""
        steppers = self.optimizers()
        log = Losses(self.device, f"lower training.lr (now {self.order.lr:g})")
        for rows in self.batches(self.local.epochs):
            at_once = self.local.memory_optimizations.at_once(len(rows))
            parts = [self.batch(rows)] if at_once == len(rows) else MicroBatches(rows.split(at_once), self.batch)
            self._learn(parts, steppers, log)
        for stepper in steppers:  # the test finds no gradients any more
            stepper.zero_grad(set_to_none=True)
        losses = log.values()
        last = losses[-max(1, len(losses) // self.local.epochs) :]
        return sum(last) / len(last)

    def _learn(self, parts: list[Batch] | MicroBatches[Batch], steppers: list[Optimizer], log: Losses) -> None:
        """One step."""
        for stepper in steppers:  # before the pass, so that old gradients are not part of its peak
            stepper.zero_grad(set_to_none=True)
        if len(parts) > 1:
            objective, loss = add_up(parts, self._part_objective, _stepped(steppers), self.device)
        else:
            objective, loss = self._objective_and_loss(next(iter(parts)))
            if (
                self.local.memory_optimizations.step_in_backward
            ):  # then there is one optimiser, and nobody looks at gradients
                log.add(objective, loss)
                with stepping_in_backward(steppers[0]):
                    objective.backward()
                return
            objective.backward()
        log.add(objective, loss)
        self._step(steppers)

    def _step(self, steppers: list[Optimizer]) -> None:
        """The gradients are there."""
        self.before_step()
        for stepper in steppers:
            stepper.step()
        self.after_step()

    def batches(self, epochs: int) -> Iterator[Tensor]:
        """Row numbers of the training samples, batch by batch, for so many epochs, each in an order of its own."""
        train = self.shard.train
        return shuffled(len(train), self.local.batch, epochs, self.rng, train.widths)

    def batch(self, rows: Tensor) -> Batch:
        """These training samples, ready for the model."""
        inputs, labels = self.shard.batch(rows)
        return Batch(rows, place(inputs, self.device), place(labels, self.device))

    def _objective_and_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective, and the loss that is reported. Outputs are gone when it returns, their graph is not."""
        if not self._own_outputs and reads_in_parts(self.model):
            loss = loss_of_tokens(
                self.model,
                batch.inputs,
                batch.labels,
                features_at(self.features, batch.rows, batch.inputs),
                self.local.lambda2,
            )
            return loss, loss
        outputs = self.forward(batch)
        loss = self.loss(outputs, batch)
        return self.objective(loss, outputs, batch), loss

    @property
    def _own_outputs(self) -> bool:
        """Whether this trainer looks at the outputs of all tokens itself, as what it overrides shows."""
        return any(getattr(type(self), hook) is not getattr(Trainer, hook) for hook in ("forward", "loss", "objective"))

    def _part_objective(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        return *self._objective_and_loss(batch), counted(self.model.targets(batch.labels))

    def scores(self) -> dict[str, float]:
        """The personal submodel as it was trained (rescaled, if so), deepest exit, on the local test part.

        The factors of the rescaling become part of the model's weights, so the update must have been taken before.
        """
        test = self.shard.test
        if len(test) == 0:
            return {"local_samples": 0}
        self.model.fold_rescale()
        self.features = None  # those of the training samples make room for the test's
        at_once = self.local.memory_optimizations.at_once(self.local.batch)
        scores = evaluate(self.model, test, self.shard.normalize, self.shard_features(test), at_once)[-1]
        return {"local_samples": len(test)} | {f"local_{name}": value for name, value in scores.items()}

    def keep_personal(self, file: Path, most: int, facts: Mapping[str, Any]) -> bool:
        """When the task is done: write the submodel as it was tested, with `facts`, if it takes at most so many bytes.

        False if it takes more, or if tensors are not all there is to it.
        """
        model = getattr(self, "model", None)  # some tasks train none
        return model is not None and write_personal(file, most, model, self.order, self._frozen(), facts)

    def shard_features(self, part: Examples) -> Features | None:
        """The part's features behind the frozen prefix; None if nothing is frozen or the part is empty."""
        if not self.order.spec.has_prefix or len(part) == 0:
            return None
        if part.augments:
            return FreshFeatures(self._behind_prefix)
        order = None if part.widths is None else part.widths.argsort(stable=True)  # texts of like width together
        passed = part if order is None else part.subset(order)
        features = prefix_features(
            self.config,
            self.order.spec,
            self._frozen(),
            lambda rows: self.shard.inputs(passed, rows),
            len(part),
            batch := self.contract.prefix_batch(len(part)),
            self.local.store,
            self.local.feature_precision,
            passed.widths,
            self._kept_features(part, batch),
        )
        if isinstance(features, TextFeatures) and order is not None:
            return features.in_order(order.argsort())
        return features

    def _kept_features(self, part: Examples, batch: int) -> KeptFeatures | None:
        """Those of this part of the shard, where the server says which are good and to be kept."""
        cached = self.order.cached
        if cached is None or self.client_cache is None or not (cached.features or cached.keep):
            return None
        # Samples that pass in other batches may be rounded otherwise.
        owner = f"{self.order.client} {data_digest(part)} {self.local.feature_precision} {batch}"
        return CachedFeatures(self.client_cache, cached, owner)

    def _behind_prefix(self, inputs: Tensor) -> Tensor:
        count, file = len(inputs), self._frozen()
        return prefix_features(self.config, self.order.spec, file, lambda rows: inputs[rows], count, count)[:]

    def load(self, spec: SubmodelSpec, weights: Weights, rescale: bool) -> ElasticTransformer:
        """A submodel with these very tensors, and with the frozen ones it needs next to them.

        These are the table of a tied language model above a frozen prefix, the rest of the window's blocks if it stays,
        and the blocks above if they do: read one by one when they are needed.
        """
        held, file = dict(weights), self._frozen()
        model = ElasticTransformer(self.config, spec, rescale=rescale)
        if self.config.task == "language-modeling" and self.config.tied and spec.has_prefix:
            if model.outputs > SMALL:
                model.read_table(file.table("embed.tokens"))
            else:
                held["embed.tokens"] = file.part("embed.")["tokens"]
        for block in range(spec.frozen, spec.top) if spec.rest else ():
            start = f"blocks.{block}.rest."
            held |= {start + name: tensor for name, tensor in file.part(start).items()}
        model.load(held)
        if spec.above(self.config):
            model.above = StreamedSuffix(self.config, spec, file)
        return model

    # ------------------------------------------------------------ to override

    def prepare(self, report: dict[str, float]) -> tuple[SubmodelSpec, Weights]:
        """The trained part of the submodel that was sent. Figures for the log go into `report`."""
        return self.order.spec, self.given()

    def build(self, spec: SubmodelSpec) -> ElasticTransformer:
        """The model, with copies of the weights in `start`: the task itself stays as it came."""
        model = self.load(spec, {name: tensor.clone() for name, tensor in self.start.items()}, self.local.rescale)
        if self.local.memory_optimizations.recompute == "yes":
            recompute(model.blocks.values())
        return model

    def begin(self) -> None:
        """The model is ready, nothing has happened yet."""

    def optimizers(self) -> list[Optimizer]:
        """Over all that is trained; fresh at every task."""
        name, lr, decay = self.local.stepper, self.order.lr, self.local.weight_decay
        return [make_optimizer(name, list(trainable(self.model).values()), lr, decay)]

    def forward(self, batch: Batch) -> Sequence[Tensor]:
        """The outputs of all exits, shallowest first."""
        outputs: list[Tensor] = self.model(batch.inputs, features_at(self.features, batch.rows, batch.inputs))
        return outputs

    def loss(self, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        """The loss that is reported."""
        local = self.local
        labels = self.model.targets(batch.labels)
        return exits_loss(outputs, labels, local.lambda2, local.temperature)

    def objective(self, loss: Tensor, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        """The objective that is minimised: the loss, and whatever a method adds to it."""
        return loss

    def before_step(self) -> None:
        """The gradients are there, the optimiser has not used them."""

    def after_step(self) -> None:
        """The weights have changed; the gradients are still there."""

    def end(self) -> Learned:
        """The epochs are over, the personal submodel has not been tested yet."""
        end = self.model.weights()
        changes = torch._foreach_sub(list(self.start.values()), [end[name] for name in self.start])
        return Learned(dict(zip(self.start, changes, strict=True)))


def _stepped(steppers: list[Optimizer]) -> Iterator[Tensor]:
    return (parameter for stepper in steppers for group in stepper.param_groups for parameter in group["params"])


class SubmodelTrainer(Trainer):
    """Co-S²P's, and that of any method which only says which submodel: after a mask phase, if there are quotas."""

    name: ClassVar[str] = "submodel"
    supports = OPTIMIZATIONS
    settings: LocalSettings

    def prepare(self, report: dict[str, float]) -> tuple[SubmodelSpec, Weights]:
        wide, quotas = self.order.spec, self.order.quotas
        if quotas is None:
            return super().prepare(report)
        report["mask_loss"] = self._train_masks(quotas)
        spec = choose(self.remembered, self.config, wide, quotas, self.rng)
        return spec, narrow(self.given(), self.config, wide, spec)

    def _train_masks(self, quotas: tuple[BlockSize, ...]) -> float:
        met = frozenset(self.remembered)
        deepest = replace(self.order.spec, exits=self.order.spec.exits[-1:])  # masks learn from it alone
        candidates = self.given(own=True)
        model = self.load(deepest, candidates, rescale=False)
        phase = self.settings.mask
        kinds = Trained(phase.heads, phase.units)
        masks = MaskTrainer(model, self.remembered, quotas, kinds, phase.lambda1, self.rng)
        drawn = self._mask_samples()
        loss = 0.0
        if phase.scores:
            loss = begin_from_scores(masks, self._mask_batches(drawn, 1), met)
        if phase.epochs == 0:
            masks.remember()
            return loss
        return masks.train(self._mask_batches(drawn, phase.epochs), phase.lr)

    def _mask_samples(self) -> Tensor | None:
        """The samples that the phase sees; None: all of them."""
        samples = len(self.shard.train)
        seen = mask_samples(samples, self.settings.mask.share)
        return None if seen == samples else torch.randperm(samples, generator=self.rng)[:seen]

    def _mask_batches(self, drawn: Tensor | None, epochs: int) -> Iterator[list[MicroBatch]]:
        train, batch, phase = self.shard.train, self.settings.batch, self.settings.mask
        count, widths = len(train), train.widths
        if drawn is not None:
            count, widths = len(drawn), None if widths is None else widths[drawn]
        for picked in shuffled(count, batch, epochs, self.rng, widths):
            rows = picked if drawn is None else drawn[picked]
            parts = map(self.batch, rows.split(phase.micro_batch or batch))
            yield [(p.inputs, features_at(self.features, p.rows, p.inputs), p.labels) for p in parts]
