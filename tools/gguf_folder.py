"""A GGUF file of a LLaMA as a Hugging Face folder: dequantised to float16, q and k rows in Hugging Face's order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.gguf_tokenizer import build_tokenizer

_PLAIN = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_SHARD_BYTES = 500_000_000


def convert(file: Path, folder: Path) -> None:
    """Write config.json, the tensors in shards of half a gigabyte, and tokenizer.json."""
    reader = GGUFReader(file)
    facts = {
        name: entry.contents() for name, entry in reader.fields.items() if name.startswith(("llama.", "tokenizer."))
    }
    folder.mkdir(parents=True, exist_ok=True)
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    _write_shards(_tensors(reader, facts), folder)
    tokenizer, special = build_tokenizer(facts)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    _write(folder / "config.json", _config(facts, tied))


def _config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": facts["llama.rope.freq_base"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _tensors(reader: GGUFReader, facts: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float16]]]:
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        values = dequantize(tensor.data, tensor.tensor_type)
        if name.startswith("blk."):
            _, block, layer = name.split(".")
            if layer in heads:
                values = unpermuted(values, facts[heads[layer]])
            name = f"model.layers.{block}.{_BLOCK[layer]}"
        else:
            name = _PLAIN[name]
        yield f"{name}.weight", np.ascontiguousarray(values, dtype=np.float16)


def unpermuted(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """GGUF has the two halves of a rotated pair next to each other, Hugging Face half a head apart."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _write_shards(tensors: Iterator[tuple[str, NDArray[np.float16]]], folder: Path) -> None:
    shards: list[dict[str, NDArray[np.float16]]] = [{}]
    places: dict[str, int] = {}

    def flush() -> None:
        save_file(shards[-1], folder / f"shard-{len(shards)}.part", metadata={"format": "pt"})
        print(f"  {folder.name}: {len(places)} tensors", flush=True)
        shards[-1] = {}

    for name, values in tensors:
        if shards[-1] and sum(v.nbytes for v in shards[-1].values()) + values.nbytes > _SHARD_BYTES:
            flush()
            shards.append({})
        shards[-1][name] = values
        places[name] = len(shards)
    flush()
    names = {i: f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)}
    if len(shards) == 1:
        names = {1: "model.safetensors"}
    for i, name in names.items():
        (folder / f"shard-{i}.part").replace(folder / name)
    if len(shards) > 1:
        index = {"metadata": {}, "weight_map": {name: names[i] for name, i in places.items()}}
        _write(folder / "model.safetensors.index.json", index)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
