from __future__ import annotations

import pytest
import torch

from cos2p.errors import TrainingError
from cos2p.training.losses import TOGETHER, Losses

ONE, BAD = torch.tensor(1.0), torch.tensor(float("nan"))


def test_what_is_reported_is_read_in_order() -> None:
    log = Losses(torch.device("cpu"), "")
    for value in (1.0, 2.0, 3.0):
        log.add(ONE, torch.tensor(value))
    assert log.values() == [1.0, 2.0, 3.0]


def test_on_the_processor_a_loss_that_is_no_number_is_told_at_once() -> None:
    with pytest.raises(TrainingError, match="the loss of the mask phase became nan; lower it"):
        Losses(torch.device("cpu"), "lower it", of="the mask phase").add(BAD, ONE)


def test_a_gpu_is_asked_for_many_at_once() -> None:
    log = Losses(torch.device("cuda:0"), "lower it")
    for _ in range(TOGETHER - 1):
        log.add(BAD, ONE)
    with pytest.raises(TrainingError, match="the loss became nan; lower it"):
        log.add(BAD, ONE)
    late = Losses(torch.device("cuda:0"), "lower it")
    late.add(BAD, ONE)
    with pytest.raises(TrainingError):
        late.values()


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_no_loss_is_less_than_nothing(device: str) -> None:
    log = Losses(torch.device(device), "")
    log.add(ONE, torch.tensor(-0.0))
    assert str(log.values()) == "[0.0]"
