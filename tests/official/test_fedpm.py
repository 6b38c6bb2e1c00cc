"""FedPM against BerivanIsik/sparse-random-networks: the weights' size, the scores' gradient, the server's update.

Different on purpose: `gain` is 1 by default, e there; only the holders of a segment count, here all clients hold all;
the server keeps θ, theirs its logit.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from cos2p import SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.models.layout import Weights, init_weights
from cos2p_rivals.fedpm.merge import MaskMerge
from cos2p_rivals.fedpm.network import draw, masked_shapes, pack_bits, random_weight, to_scores
from tests.official.block import VIT
from tests.official.case import agree, fixture, wave

OFFICIAL = fixture("fedpm")
WEIGHT, BIAS = "blocks.0.fc1.weight", "blocks.0.fc1.bias"
"""A layer of the official size, three outputs of four inputs."""


def test_the_constant_of_the_random_weights() -> None:
    for name in (WEIGHT, BIAS):
        sizes = random_weight(VIT, name, seed=1, gain=math.e).abs()
        agree(f"FedPM |{name}|", sizes, [OFFICIAL["layer"]["constant"]] * sizes.numel())


def test_the_gradient_of_the_scores() -> None:
    """The loss is linear in the drawn weights, so the gradient does not depend on the draw."""
    scores = [(2 * wave(shape, phase)).requires_grad_() for shape, phase in (([3, 4], 1.0), ([3], 2.0))]
    weight, bias = torch.tensor(OFFICIAL["layer"]["weight"]).view(3, 4), torch.tensor(OFFICIAL["layer"]["bias"])
    rng = torch.Generator().manual_seed(0)
    drawn = [draw(s, w, rng, "official") for s, w in zip(scores, (weight, bias), strict=True)]
    (F.linear(wave([5, 4], 3.0), *drawn) * wave([5, 3], 4.0)).sum().backward()
    for score, name in zip(scores, ("weight_score", "bias_score"), strict=True):
        assert score.grad is not None
        agree(f"FedPM gradient, {name}", score.grad, OFFICIAL["gradient"][name])


def test_the_scores_after_a_round() -> None:
    aggregation, spec = OFFICIAL["aggregation"], SubmodelSpec.full(VIT)
    current = init_weights(VIT, 0)
    current |= {name: torch.full(shape, 0.5) for name, shape in masked_shapes(VIT, spec).items()}
    merge = MaskMerge(VIT, prior=0.0, elements=True)
    for client, masks in enumerate(aggregation["masks"]):
        merge.add(merge.decode(_upload(str(client), masks, current), current), current)
    merged = merge.apply(current)
    agree("FedPM scores of weights", to_scores(merged[WEIGHT]), aggregation["scores_after"]["mask"])
    agree("FedPM scores of biases", to_scores(merged[BIAS]), aggregation["scores_after"]["bias_mask"])


def _upload(client: str, masks: dict[str, list[float]], current: Weights) -> Contribution:
    """The official client's draw as bits; the other layers' bits are all set."""
    spec = SubmodelSpec.full(VIT)
    bits = {name: torch.ones(shape) for name, shape in masked_shapes(VIT, spec).items()}
    bits[WEIGHT] = (torch.tensor(masks["mask"]) > 0.5).view(3, 4).float()
    bits[BIAS] = (torch.tensor(masks["bias_mask"]) > 0.5).float()
    return Contribution(client, spec, {}, 1, 0, current, extras={"mask": pack_bits(bits)})
