"""Data sets by their Hugging Face name, through the optional `datasets` library."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from cos2p.data import paths
from cos2p.data.cells import Table
from cos2p.data.config import DataConfig
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.tables import raw_from_table
from cos2p.errors import DataError, MissingExtra, OwnerRefused

_VALIDATION_NAMES = ("validation", "valid", "val", "dev")


def read_hub(config: DataConfig) -> RawSplits:
    if paths.is_confined():
        message = "data.source 'hub' fetches from the network; this device reads its own folder alone"
        raise OwnerRefused(message, told=message)
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"data set {config.path!r} from the hub needs the datasets library: pip install cos2p[hub]"
        ) from error
    try:
        loaded = datasets.load_dataset(config.path, name=config.subset or None)
    except Exception as error:  # network, unknown name, gated, broken script: whatever it was, say its words
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"data set {config.path!r} cannot be fetched from the hub ({reason}); "
            f"check data.path and data.subset, and the network"
        ) from error
    train = config.train or "train"
    test = config.test or ("test" if "test" in loaded else "")
    usual = next((name for name in _VALIDATION_NAMES if name in loaded and name != test), "")
    validation = config.validation or usual

    def split(name: str) -> Raw:
        if name not in loaded:
            raise DataError(f"data set {config.path!r} has no split {name!r}; it has {', '.join(loaded)}")
        return raw_from_table(_table(loaded[name], f"{config.path} ({name})", datasets, config), config)

    return RawSplits(
        train=split(train),
        validation=split(validation) if validation else None,
        test=split(test) if test else None,
    )


def _table(dataset: Any, where: str, datasets: Any, config: DataConfig) -> Table:
    columns = tuple(dataset.column_names)
    if not config.text_column and config.image_column in columns:
        # Encoded bytes as they are stored: only the chosen ones will be decoded.
        dataset = dataset.cast_column(config.image_column, datasets.Image(decode=False))

    def read(names: list[str]) -> pa.Table:
        return dataset.select_columns(names).with_format("arrow")[:]

    label = dataset.features.get(config.label_column)
    names = getattr(label, "names", None)
    # A fingerprint says what the rows were made from; without one nothing of them is found again.
    identity = getattr(dataset, "_fingerprint", None) or uuid.uuid4().hex
    return Table(where, columns, read, class_names=tuple(names) if names else None, identity=f"{where} {identity}")
