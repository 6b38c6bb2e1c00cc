"""Plain text files for language modelling, packed into sequences of one length."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.groups import Groups
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.text import pack
from cos2p.errors import DataError


def read_text(config: DataConfig) -> RawSplits:
    return RawSplits(
        train=_split(config.train, config),
        validation=_split(config.validation, config) if config.validation else None,
        test=_split(config.test, config) if config.test else None,
    )


def _split(name: str, config: DataConfig) -> Raw:
    files = paths.find_all(config.path, name)
    tokens, owners = pack([_content(file) for file in files], config)
    where = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    # A file is its sequences' natural owner: an author, a speaker.
    groups = Groups.of([files[number].name for number in owners.tolist()])
    return Raw(where=where, count=len(owners), labels=None, tokens=tokens, groups=groups)


def _content(file: Path) -> str:
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text in UTF-8 ({error})") from error
    if not text.strip():
        raise DataError(f"{file} is empty; take it out of data.train, data.validation or data.test")
    return text
