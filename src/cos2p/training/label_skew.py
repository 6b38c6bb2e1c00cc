"""A device that lacks some classes must not make the others forget them.

Trained on labels it has seen in unequal shares p, an exit learns to favour the frequent ones and to rule out those it
never meets. With many devices in a round that averages out. An exit of a window has one or two trainers a round, and
fast devices come more often: on a fleet whose fastest devices lacked three classes, the server's model lost those.

`logit-adjustment` (Menon et al. 2021, with the prior of each device's own data and τ = 1, which is the balanced softmax
of Ren et al. 2020): while a device trains, it adds log p to the logits. They explain frequent labels by themselves, and
the weights learn what separates the classes. The server's model, without the addition, treats all classes alike; the
device's own submodel keeps it and so predicts with the shares of its own data. No count leaves the device. As log p
is the same for every sample, it is a shift of the exits' biases: an update, being a difference, is free of it.
(Weight decay, where there is any, also acts on the shift; the shift has mean 0, so classes are pulled together.)

Adan and Adam divide by the size of the gradient, so that even the small one of an absent class moves its bias. To leave
absent classes out altogether was tried: no better on two splits, for Co-S²P and HeteroFL.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.messages import Task
from cos2p.models.config import ModelConfig

ABSENT = 0.01
"""Samples that a class without any is taken to have: small, and its logarithm still a number."""


def check_adjustable(config: ModelConfig) -> None:
    """Refuse what has no classes, or no bias to shift."""
    if config.task != "classification" or not config.biased:
        raise ConfigError(
            'training.label_skew = "logit-adjustment" shifts the biases of a classifier, and this model has none; '
            'use "ignored"'
        )


def log_shares(labels: Tensor, classes: int) -> Tensor:
    """log p of the classes among the labels, less the mean over the classes.

    >>> log_shares(torch.tensor([0, 0, 1, 1]), classes=2).tolist()
    [0.0, 0.0]
    """
    shares = (torch.bincount(labels, minlength=classes) + ABSENT).log()
    return shares - shares.mean()


def with_own_shares(config: ModelConfig, task: Task, labels: Tensor) -> Task:
    """The task with the shares of the device's labels in the biases of its exits."""
    check_adjustable(config)
    shift = log_shares(labels, config.outputs)
    return replace(
        task,
        weights={
            name: tensor + shift if name.startswith("exits.") and name.endswith(".linear.bias") else tensor
            for name, tensor in task.weights.items()
        },
    )
