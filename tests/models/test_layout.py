from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec, model_config
from cos2p.models.layout import Axis, init_tensor, init_weights, layout, segment_width
from cos2p.models.transformer import ElasticTransformer
from tests.submodel.strategies import CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_the_table_names_exactly_the_tensors_of_the_module(name: str) -> None:
    config = CONFIGS[name]
    module = ElasticTransformer(config, SubmodelSpec.full(config, exits=range(1, config.depth + 1)))
    shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
    assert shapes == {n: p.shape for n, p in layout(config).items()}


def test_cut_axes_are_whole_numbers_of_segments() -> None:
    for config in CONFIGS.values():
        for parameter in layout(config).values():
            if parameter.cut is not None:
                dim, axis = parameter.cut
                segments = {Axis.UNIT: config.mlp, Axis.ROW: config.vocab}.get(axis, config.groups)
                assert parameter.shape[dim] == segments * segment_width(config, axis)


def test_an_exit_at_every_depth_or_one_for_all() -> None:
    bank, shared = (layout(model_config("vit-nano", exits=kind)) for kind in ("bank", "shared"))
    assert {name.split(".")[1] for name in bank if name.startswith("exits.")} == {str(d) for d in range(1, 9)}
    assert {name.split(".")[1] for name in shared if name.startswith("exits.")} == {"shared"}


def test_fresh_weights_depend_on_seed_and_name_alone() -> None:
    nano, deeper = model_config("vit-nano"), model_config("vit-nano", depth=9)
    name = "blocks.3.fc1.weight"
    assert torch.equal(init_weights(nano, 7)[name], init_weights(deeper, 7)[name])
    assert torch.equal(init_weights(nano, 7)[name], init_tensor(nano, name, 7))
    assert not torch.equal(init_tensor(nano, name, 7), init_tensor(nano, name, 8))
    assert not torch.equal(init_tensor(nano, name, 7), init_tensor(nano, "blocks.4.fc1.weight", 7))


def test_fresh_weights_have_the_usual_spread() -> None:
    weights = init_weights(model_config("vit-nano"), 0)
    assert weights["blocks.0.fc1.weight"].std().item() == pytest.approx(0.02 * (768 / 64) ** 0.5, rel=0.05)
    assert weights["blocks.0.norm1.weight"].unique().tolist() == [1.0]
    assert weights["blocks.0.fc1.bias"].unique().tolist() == [0.0]
