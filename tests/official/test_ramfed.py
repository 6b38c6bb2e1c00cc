"""RAM-Fed's server against limee-sdu/ram-fed: the global model after each of four rounds of three clients.

The official script gives all clients one and the same list as their memory, so that each remembers what the last one
did. The paper's rule, and ours, is a memory for each client; the official lines were run with a list for each. A test
below shows that the published form gives other numbers.

Different on purpose: masks are whole segments, drawn uniformly, not quarters of a matrix by rank; no first round with
the full model (here it is fed in, as it is in the fixture); no common mask in every tenth round.
"""

from __future__ import annotations

import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.methods.widths import width_spec
from cos2p.models.layout import Weights, init_weights
from cos2p.submodel.slicing import trained_shapes
from cos2p_rivals.ramfed import MemoryMerge
from tests.official.case import agree, fixture, wave

OFFICIAL = fixture("ramfed")
CONFIG = ModelConfig("vit", dim=2, depth=1, heads=1, mlp=4, classes=2, image=2, patch=2, channels=1)
NAMES = {
    "embedding.weight": "blocks.0.fc1.weight",  # masked by rows
    "fc1.weight": "blocks.0.fc2.weight",  # masked by columns
    "fc1.bias": "blocks.0.fc2.bias",  # these three are shared
    "fc2.weight": "blocks.0.norm2.weight",
    "fc2.bias": "blocks.0.norm2.bias",
}


def played() -> list[Weights]:
    """The model after each round."""
    weights = init_weights(CONFIG, 0)
    weights |= {name: wave(weights[name].shape, 1.0 + i) for i, name in enumerate(NAMES.values())}
    merge = MemoryMerge(CONFIG, clients=OFFICIAL["clients"])
    after = []
    for round, clients in enumerate(OFFICIAL["fed"]["kept"]):
        for client, units in enumerate(clients):
            spec = width_spec([[0]], [units])
            merge.add(Contribution(str(client), spec, _delta(spec, units, round, client), 1, 0, weights), weights)
        weights = merge.apply(weights)
        after.append(weights)
    return after


def _delta(spec: SubmodelSpec, units: list[int], round: int, client: int) -> Weights:
    """Ours is what was there minus what is there, theirs the other way round."""
    delta = {name: torch.zeros(shape) for name, shape in trained_shapes(CONFIG, spec).items()}
    for i, (theirs, ours) in enumerate(NAMES.items()):
        full = -0.1 * wave(OFFICIAL["fed"]["shapes"][theirs], 50.0 + 17 * round + 5 * client + i)
        delta[ours] = full[units] if i == 0 else full[:, units] if i == 1 else full
    return delta


def test_the_model_after_every_round() -> None:
    for round, (weights, official) in enumerate(zip(played(), OFFICIAL["after"], strict=True)):
        for theirs, ours in NAMES.items():
            agree(f"RAM-Fed round {round}, {ours}", weights[ours], official[theirs])


def test_one_list_for_all_clients_would_give_another_model() -> None:
    shared = torch.tensor(OFFICIAL["after_with_one_list_for_all"]["embedding.weight"])
    assert (played()[-1]["blocks.0.fc1.weight"].flatten() - shared).abs().max() > 0.05
