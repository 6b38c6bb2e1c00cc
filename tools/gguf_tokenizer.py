"""The tokenizer that a GGUF file describes, as `tokenizers` has it. Needs no `gguf`: the facts are a dictionary."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE


def build_tokenizer(facts: dict[str, Any]) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer and the names of its special tokens."""
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    special = {f"{kind}_token": tokens[facts[f"tokenizer.ggml.{name}_token_id"]]
               for kind, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}  # fmt: skip
    build = {"gpt2": _byte_level, "llama": _sentencepiece}[facts["tokenizer.ggml.model"]]
    tokenizer = build(tokens, facts)
    controls = [token for token, kind in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    return tokenizer, special


def _byte_level(tokens: list[str], facts: dict[str, Any]) -> Tokenizer:
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: list[str], facts: dict[str, Any]) -> Tokenizer:
    """Merges follow from the scores: every way to make a token of two others, the likeliest token first."""
    vocabulary, scores = {token: i for i, token in enumerate(tokens)}, facts["tokenizer.ggml.scores"]
    merges = []
    for i, token in enumerate(tokens):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[i], pair) for pair in known]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    tokenizer = Tokenizer(
        BPE(vocabulary, [pair for _, pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bos = tokens[facts["tokenizer.ggml.bos_token_id"]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary[bos])]
    )
    return tokenizer
