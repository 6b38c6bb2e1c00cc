from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cos2p.data import DataConfig, Normalize


def test_the_default_needs_no_file() -> None:
    config = DataConfig()

    assert config.source == "digits"
    assert config.normalize == Normalize(mean=(0.5,), std=(0.5,))


def test_it_survives_json_and_is_hashable() -> None:
    config = DataConfig(source="csv", path="${HOME}/x", train="a.csv", text_column="text", mean=(0.1,))

    assert DataConfig.model_validate_json(config.model_dump_json()) == config
    assert hash(config) == hash(config.model_copy())


def test_every_field_is_described() -> None:
    undescribed = [name for name, field in DataConfig.model_fields.items() if not field.description]

    assert undescribed == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "tar"}, "digits"),
        ({"sauce": "digits"}, "sauce"),
        ({"source": "idx"}, "`train`"),
        ({"source": "folder"}, "image folder in `path`"),
        ({"source": "hub"}, "name of the data set in `path`"),
        ({"source": "digits", "text_column": "text"}, "has no such columns"),
        ({"source": "csv", "train": "a.csv", "task": "language-modeling"}, "`text_column`"),
        ({"channels": 1, "mean": (0.1, 0.2, 0.3)}, "`mean` has 3 numbers for 1 channel"),
        ({"channels": 3, "std": (0.1, 0.2)}, "`std` has 2 numbers for 3 channel"),
        ({"std": (0.0,)}, "greater than 0"),
        ({"channels": 2}, "channels"),
        ({"validation_fraction": 1.0}, "less than 1"),
        ({"test_fraction": -0.1}, "greater than or equal to 0"),
        ({"train_samples": -1}, "greater than or equal to 0"),
        ({"max_tokens": 1}, "greater than or equal to 2"),
        ({"image_size": -8}, "greater than or equal to 0"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(**fields)


def test_it_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DataConfig().path = "elsewhere"  # type: ignore[misc]
