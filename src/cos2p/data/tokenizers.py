"""Which tokenizer: one token per byte, a `tokenizer.json`, or the one next to a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.paths import key_of
from cos2p.errors import DataError
from cos2p.extras import extra

# The byte tokenizer: three special ids, then the 256 bytes.
BYTE_PAD, BYTE_START, BYTE_END, BYTE_FIRST = 0, 1, 2, 3
BYTE_VOCABULARY = BYTE_FIRST + 256

_PROBE = "The quick brown fox of 1867 jumps over thirteen lazy dogs, doesn't it?"
"""Two tokenizers that agree on this are taken for the same."""

_PAD_TOKENS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>", "</s>", "<unk>")
"""Models without a padding token are commonly padded with the end of text: it is hidden by its position."""


_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>", "<|end_of_text|>")


@dataclass(frozen=True, eq=False)
class Encoder:
    encode: Callable[[list[str]], list[list[int]]]
    """Ids of each text, at most max_tokens, with the special tokens around it."""
    encode_piece: Callable[[str], list[int]]
    """Ids of a piece of a longer text, all of them and nothing around them."""
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Special ids before and after a text."""
    pad_id: int
    vocabulary: int
    identity: str
    """Another tokenizer has another one."""
    decode: Callable[[list[int]], str]
    """Ids as text, as far as they are one."""
    end: int | None
    """The end of an answer: the mark behind a text, or the model's own end of text."""
    unknown: int | None = None
    """The id that stands for a sign that the tokenizer does not know; None: it knows all."""


def find_tokenizer(pretrained: str) -> str:
    """The path of the `tokenizer.json` of a checkpoint, a folder or a hub name; DataError if it has none."""
    pretrained = paths.checkpoint_folder(pretrained)
    folder = Path(pretrained)
    if folder.is_dir() or paths.is_confined():  # then nothing is fetched
        return str(paths.opened(_in_folder(folder)))
    huggingface_hub = extra("huggingface_hub", "text", "A checkpoint of the hub")

    try:
        return str(huggingface_hub.hf_hub_download(pretrained, "tokenizer.json"))
    except Exception as error:  # no network, no such name, no such file: whatever it was, say its words
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"no tokenizer.json of the checkpoint {pretrained!r} is found ({reason}); name one in data.tokenizer"
        ) from error


def resolved(config: DataConfig, pretrained: str) -> DataConfig:
    """The config with `auto` replaced: the checkpoint's own tokenizer, or bytes if there is no checkpoint."""
    if config.tokenizer not in ("", "auto"):
        return config
    return config.model_copy(update={"tokenizer": find_tokenizer(pretrained) if pretrained else "bytes"})


def check_fits(config: DataConfig, pretrained: str) -> None:
    """DataError if the config names a tokenizer that reads a text otherwise than the one next to the checkpoint does.

    Its ids may all be in the checkpoint's table, and yet each be another word: the model would train on nonsense.
    """
    own = Path(paths.checkpoint_folder(pretrained)) / "tokenizer.json"
    if not own.is_file():
        return
    theirs = make_encoder(config.model_copy(update={"tokenizer": str(own)}))
    if make_encoder(config).encode_piece(_PROBE) != theirs.encode_piece(_PROBE):
        raise DataError(
            f"data.tokenizer {config.tokenizer!r} reads texts otherwise than {own}, the tokenizer of the checkpoint; "
            "set data.tokenizer = 'auto', or take a checkpoint that was trained with it"
        )


def checkpoint_vocabulary(pretrained: str) -> int | None:
    """Rows of the checkpoint's table of tokens, if a folder says so."""
    try:
        values = json.loads((Path(paths.checkpoint_folder(pretrained)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, DataError):
        return None  # whoever loads the checkpoint will say what is wrong with it
    vocabulary = values.get("vocab_size") if isinstance(values, dict) else None
    return vocabulary if isinstance(vocabulary, int) else None


def make_encoder(config: DataConfig) -> Encoder:
    return _byte_encoder(config) if config.tokenizer in ("", "auto", "bytes") else _file_encoder(config)


def _byte_encoder(config: DataConfig) -> Encoder:
    ends = config.task == "classification"  # a language model would learn that texts end where they were cut

    def encode(texts: list[str]) -> list[list[int]]:
        return [_bytes(text, config.max_tokens, ends) for text in texts]

    def piece(text: str) -> list[int]:
        return [byte + BYTE_FIRST for byte in text.encode()]

    around = ((BYTE_START,), (BYTE_END,))
    identity = "bytes, ends kept" if ends else "bytes"
    return Encoder(encode, piece, around, BYTE_PAD, BYTE_VOCABULARY, identity, _from_bytes, BYTE_END)


_PLAIN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]")
_NESTED = re.compile(r"\([^()]*[+*][^()]*\)[+*{]")
"""A group that repeats and has a repetition in it, in a pattern whose classes and escapes are out of the way."""


def _file_encoder(config: DataConfig) -> Encoder:
    tokenizers = extra("tokenizers", "text", "A tokenizer")

    file = paths.find(config.tokenizer)
    file = paths.opened(_in_folder(file)) if file.is_dir() else file
    if file.suffix == ".model":
        raise _sentencepiece(file)
    try:
        content = file.read_text(encoding="utf-8")
        for pattern in re.findall(r'"Regex"\s*:\s*("(?:[^"\\]|\\.)*")', content):
            if _NESTED.search(_PLAIN.sub("x", json.loads(pattern))):
                raise DataError(f"the pattern {pattern} repeats a repetition, which can take for ever")
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        raise DataError(f"{file} is not a tokenizer.json ({error}); name one in data.tokenizer") from error
    padding = tokenizer.padding
    pad_ids = [padding["pad_id"]] if padding else [tokenizer.token_to_id(token) for token in _PAD_TOKENS]
    pad_id = next((i for i in pad_ids if i is not None), None)
    if pad_id is None:
        raise DataError(f"{file} has no padding token; add one of {', '.join(_PAD_TOKENS)} to it")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    before, after = around(tokenizer)

    def encode(texts: list[str]) -> list[list[int]]:
        tokenizer.enable_truncation(max_length=config.max_tokens)
        try:
            return [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what Rust calls a defect of its own is no Exception
                raise
            raise DataError(f"{file} cannot read the texts ({error}); name another in data.tokenizer") from None

    def piece(text: str) -> list[int]:
        tokenizer.no_truncation()
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    identity = f"{tokenizers.__version__} {key_of(content)}"
    size = tokenizer.get_vocab_size()
    end = end_of_text(tokenizer, file)
    unknown = getattr(tokenizer.model, "unk_token", None)
    unknown = tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None
    return Encoder(encode, piece, (before, after), pad_id, size, identity, tokenizer.decode, end, unknown)


def end_of_text(tokenizer: Any, file: Path) -> int | None:
    """The mark behind a text; where a tokenizer puts none there, the one that its model ends with."""
    after = around(tokenizer)[1]
    known = [tokenizer.token_to_id(token) for token in (_stated_end(file), *_END_TOKENS)]
    return after[-1] if after else next((number for number in known if number is not None), None)


def _stated_end(file: Path) -> str:
    """The end of text that `tokenizer_config.json` names; empty if it names none."""
    try:
        stated = json.loads((file.parent / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(stated.get("content", "") if isinstance(stated, dict) else stated or "")


def around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own rules put before and after a text, seen on a text of one letter."""
    encoding = tokenizer.encode("a")
    special = encoding.special_tokens_mask
    inner = [i for i, flag in enumerate(special) if not flag]
    first, last = (inner[0], inner[-1] + 1) if inner else (len(special), len(special))
    return tuple(encoding.ids[:first]), tuple(encoding.ids[last:])


def _in_folder(folder: Path) -> Path:
    file = folder / "tokenizer.json"
    if file.is_file():
        return file
    models = sorted(folder.glob("*.model"))
    if models:
        raise _sentencepiece(models[0])
    raise DataError(f"{folder} has no tokenizer.json; put one there, or name one in data.tokenizer")


def _sentencepiece(file: Path) -> DataError:
    # Without these files transformers does not know whose it is, and reads texts a little otherwise.
    known = any((file.parent / name).is_file() for name in ("tokenizer_config.json", "config.json"))
    kind = "AutoTokenizer" if known else "the tokenizer class of its model (of Llama 2: LlamaTokenizer)"
    return DataError(
        f"{file} is a SentencePiece model, which is read only as its converted tokenizer.json; write that once with "
        f"transformers: {kind}.from_pretrained({str(file.parent)!r}).save_pretrained(DIR), and name DIR"
    )


def _bytes(text: str, max_tokens: int, ends: bool) -> list[int]:
    """`ends`: a text that is too long keeps its end mark, as with other tokenizers."""
    room = max_tokens - 2 if ends else max_tokens
    ids = [BYTE_START, *(byte + BYTE_FIRST for byte in text.encode()[:room]), BYTE_END]
    return ids[:max_tokens]


def _from_bytes(ids: list[int]) -> str:
    return bytes(i - BYTE_FIRST for i in ids if i >= BYTE_FIRST).decode(errors="replace")


def byte_tokenizer() -> str:
    """The byte tokenizer as the content of a `tokenizer.json`, for programs that know none without a file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    special = {"<pad>": BYTE_PAD, "<s>": BYTE_START, "</s>": BYTE_END}
    letters = {letter: byte + BYTE_FIRST for byte, letter in enumerate(_byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=special | letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    around = [("<s>", BYTE_START), ("</s>", BYTE_END)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return str(tokenizer.to_str())


def _byte_letters() -> list[str]:
    """The letter for each byte in byte-level vocabularies: itself where it can be seen, else one above 255."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte if byte in seen else 256 + hidden.index(byte)) for byte in range(256)]
