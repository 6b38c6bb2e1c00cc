from __future__ import annotations

import torch

from cos2p.models.hub import fill_exits
from cos2p.models.layout import init_tensor, layout
from tests.submodel.strategies import CONFIGS


def test_a_head_is_copied_to_every_depth() -> None:
    config = CONFIGS["vit"]
    last = {name: torch.randn(3, 16) if name == "linear.weight" else torch.randn(16)
            for name in ("norm.weight", "norm.bias", "linear.weight")}  # fmt: skip
    last["linear.bias"] = torch.randn(3)
    bank = fill_exits(config, last, seed=0)
    assert bank.keys() == {name for name in layout(config) if name.startswith("exits.")}
    assert all(torch.equal(tensor, last[name.split(".", 2)[2]]) for name, tensor in bank.items())
    bank["exits.1.norm.weight"].zero_()
    assert torch.equal(bank["exits.4.norm.weight"], last["norm.weight"])  # copies, not one tensor four times


def test_what_is_not_known_is_fresh() -> None:
    config = CONFIGS["bert"]
    bank = fill_exits(config, {}, seed=3)
    assert all(torch.equal(tensor, init_tensor(config, name, 3)) for name, tensor in bank.items())
    assert not torch.equal(bank["exits.1.linear.weight"], bank["exits.2.linear.weight"])


def test_a_language_model_is_less_sure_at_shallow_depths() -> None:
    config = CONFIGS["llama tied"]
    bank = fill_exits(config, {"norm.weight": torch.full((16,), 8.0)}, seed=0)
    assert [bank[f"exits.{depth}.norm.weight"][0].item() for depth in (1, 2, 3, 4)] == [2.0, 4.0, 6.0, 8.0]
    lower = fill_exits(config, {"norm.weight": torch.full((16,), 8.0)}, seed=0, trained_depth=16)
    assert lower["exits.2.norm.weight"][0] == 1.0  # 2/16 of 8
    shared = fill_exits(config.with_(exits="shared"), {"norm.weight": torch.full((16,), 8.0)}, seed=0)
    assert shared.keys() == {"exits.shared.norm.weight"}
    assert shared["exits.shared.norm.weight"][0].item() == 8.0
