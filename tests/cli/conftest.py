from __future__ import annotations

from pathlib import Path

import pytest

TINY = """
name = "tiny"
description = "two devices, digits, seconds"

[model]
size = "vit-nano"
depth = 2

[data]
source = "digits"
train_samples = 120
test_samples = 50

[[fleet.devices]]
preset = "laptop"
count = 2
name = "pi"
rate = 0.25
batch = 16
flops = 1e7

[training]
epochs = 1

[schedule]
rounds = 2
t_clk = 1.0

[method]
name = "cos2p"

[method.masks]
rounds = 1
epochs = 1

[run]
workers = 1
checkpoint_seconds = 0
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe that runs in seconds."""
    file = tmp_path / "tiny.toml"
    file.write_text(TINY, encoding="utf-8")
    return file
