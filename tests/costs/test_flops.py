from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.costs.fitting import make_spec
from cos2p.costs.flops import block_forward
from cos2p.costs.shape import Workload
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training.losses import exits_loss
from tests.costs.by_spec import flops
from tests.submodel.strategies import random_inputs, random_weights

SMALL = {
    "vit": model_config("vit-nano", depth=3),
    "bert": model_config("bert-nano", depth=3, max_tokens=12),
    "llama classification": model_config("llama-nano", depth=3, task="classification", max_tokens=12),
    "llama tied": model_config("llama-nano", depth=3, max_tokens=12),
    "llama untied": model_config("llama-nano", depth=3, tied=False, max_tokens=12),
}
SPECS = {
    "whole": SubmodelSpec(0, (BlockKeep((0, 1, 2, 3), tuple(range(100))),) * 3, (3,)),
    "two exits": SubmodelSpec(0, (BlockKeep((1, 2), (5, 6, 7)), BlockKeep((0,), (9,))), (1, 2)),
    "above a prefix": SubmodelSpec(1, (BlockKeep((1, 2), (5, 6, 7)), BlockKeep((0,), (9,))), (3,)),
}
BATCH = 2


def test_recomputation_is_one_forward_more_of_the_windows_blocks() -> None:
    config = model_config("vit-tiny")
    spec, plain = SubmodelSpec.full(config), Workload(batch=8)
    more = flops(config, spec, plain.with_(recompute=True)) - flops(config, spec, plain)
    assert more == 8 * 8 * block_forward(config, BlockSize.full(config), config.tokens)
    assert more / flops(config, spec, plain) == pytest.approx(1 / 3, abs=0.02)


def counted(config: ModelConfig, spec: SubmodelSpec, mask: bool) -> int:
    """What torch counts of a step whose attention runs as plain matrix products, which its counter knows."""
    weights = random_weights(config, 0)
    held = ElasticTransformer(config, spec, hold_prefix=True)
    held.load(extract(weights, config, spec) | extract_prefix(weights, config, spec))
    inputs = random_inputs(config, 0, BATCH)
    labels_shape = inputs.shape if config.task == "language-modeling" else inputs.shape[:1]
    labels = torch.randint(0, config.outputs, labels_shape, generator=torch_rng(0, "labels"))
    gates = None
    if mask:
        held.requires_grad_(False)
        gates = {
            i: (torch.ones(len(keep.heads), requires_grad=True), torch.ones(len(keep.units), requires_grad=True))
            for i, keep in enumerate(spec.window, spec.frozen)
        }
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        outputs = held(inputs, gates=gates)
        exits_loss(outputs[-1:] if mask else outputs, labels, 0.0).backward()
    return int(counter.get_total_flops())


def attention_difference(config: ModelConfig, spec: SubmodelSpec, mask: bool) -> float:
    """Plain products less ours: 2 forward and 4 backward, against the kernel's 2 and 5, of which causal does half."""
    share = 0.5 if config.family == "llama" else 1.0
    difference = spec.frozen * config.groups * (2 - 2 * share)
    for i, keep in enumerate(spec.window):
        trained_through = not (mask and i == 0)
        difference += len(keep.heads) * ((6 - 7 * share) if trained_through else (2 - 2 * share))
    one_product = 2 * config.tokens**2 * config.queries_per_group * config.head_dim
    return BATCH * one_product * difference


@pytest.mark.parametrize("mask", [False, True], ids=["weight", "mask"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", SMALL)
def test_a_step_costs_what_torch_counts(name: str, spec: str, mask: bool) -> None:
    config, part = SMALL[name], SPECS[spec]
    predicted = flops(config, part, Workload(batch=BATCH), "mask" if mask else "weight") + flops(
        config, part, Workload(batch=BATCH), "prefix"
    )
    assert counted(config, part, mask) == predicted + attention_difference(config, part, mask)


def test_flops_follow_the_rate() -> None:
    config = model_config("vit-base")
    whole = flops(config, make_spec(config, 1.0), Workload())
    # ViT-Base: 17.6 GFLOP forward for an image of 224 pixels is the published figure for one multiply-add as one
    assert whole / (8 * 3 * 2) == pytest.approx(17.6e9, rel=0.02)
    for rate in (0.5625, 0.25, 0.0625):
        assert flops(config, make_spec(config, rate), Workload()) / whole == pytest.approx(rate, rel=0.1)
