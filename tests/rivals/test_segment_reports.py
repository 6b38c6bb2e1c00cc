from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cos2p.errors import UpdateRefused
from cos2p.messages.envelope import check_forms, check_values
from cos2p.methods.widths import width_spec
from cos2p.training.settings import ExtendedSettings, LocalSettings
from cos2p_rivals.prunefl.device import PruneFlTrainer
from tests.tiny import VIT, order

SPEC = width_spec([[0, 2], [1], [], [3]], [[], [5], [0, 1], [9]])


def check(**extras: Tensor) -> None:
    found = {name.replace("_", "."): tensor for name, tensor in extras.items()}
    settings = ExtendedSettings(local=LocalSettings()).model_dump(mode="json")
    forms = PruneFlTrainer.contract_of(VIT, replace(order(SPEC), trainer="prunefl", settings=settings)).extra_tensors(
        SPEC
    )
    check_forms(forms, {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()})
    check_values(forms, found)


def test_a_number_for_each_held_segment_is_let_in() -> None:
    check(heads_0=torch.tensor([0.0, 2.0]), units_2=torch.tensor([1.0, 1e9]))
    check()


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("heads_0", torch.ones(3), "expected is float32, 2"),
        ("heads_0", torch.ones(2, dtype=torch.int64), "expected is float32, 2"),
        ("units_2", torch.tensor([1.0, torch.nan]), "not finite"),
        ("units_2", torch.tensor([1.0, -1.0]), "from -1 to 1"),
        ("units_4", torch.ones(1), "it carries"),
        ("masks_0", torch.ones(1), "it carries"),
    ],
)
def test_anything_else_is_refused_with_its_reason(name: str, values: Tensor, reason: str) -> None:
    with pytest.raises(UpdateRefused, match=reason):
        check(**{name: values})
