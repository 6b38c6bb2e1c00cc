from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cos2p import model_config
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.backward_step import recompute, stepping_in_backward
from cos2p.numerics.optimizers import make_optimizer
from cos2p.seeding import torch_rng


def passed(name: str, *, again: bool = False, inside: bool = False) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of some steps, and the weights behind them."""
    config = model_config(name)
    spec = SubmodelSpec(0, SubmodelSpec.full(config).window, (1, config.depth))
    net = ElasticTransformer(config, spec).load(init_weights(config, seed=0)).train()
    if again:
        recompute(net.blocks.values())
    optimizer, rng = make_optimizer("adan", net.parameters(), lr=2e-3), torch_rng(0, "activations")
    inputs = torch.randint(1, config.vocab, (8, config.tokens), generator=rng) if config.family != "vit" else (
        torch.randn(8, config.channels, config.image, config.image, generator=rng)
    )  # fmt: skip
    labels, losses = torch.randint(0, config.outputs, (8,), generator=rng), []
    for _ in range(12):
        optimizer.zero_grad()
        outputs = [o if o.ndim == 2 else o[:, -1] for o in net(inputs)]
        loss = torch.stack([torch.nn.functional.cross_entropy(o, labels) for o in outputs]).sum()
        losses.append(loss.item())
        if inside:
            with stepping_in_backward(optimizer):
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
    return losses, net.weights()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", ["vit-nano", "bert-nano", "llama-nano"])
def test_recomputed_blocks_learn_the_same_bits(name: str, inside: bool) -> None:
    plain, again = passed(name), passed(name, again=True, inside=inside)
    assert plain[0] == again[0]
    assert all(torch.equal(plain[1][key], again[1][key]) for key in plain[1])


def test_what_is_recomputed_keeps_nothing_from_inside_a_block() -> None:
    config = model_config("vit-nano")

    def kept(again: bool) -> int:
        net = ElasticTransformer(config, SubmodelSpec.full(config)).load(init_weights(config, seed=0)).train()
        if again:
            recompute(net.blocks.values())
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.shape[-1]
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(torch.zeros(2, config.channels, config.image, config.image))
        return sum(width == config.mlp for width in seen.values())

    assert kept(again=False) >= 2 * config.depth
    assert kept(again=True) == 0
