"""Real pretrained weights, evaluated by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from cos2p import SubmodelSpec
from cos2p.models.hub import load_pretrained, save_pretrained
from cos2p.models.transformer import ElasticTransformer
from tools.llama2c import load_llama2c

transformers: Any = pytest.importorskip("transformers", reason="transformers is the judge of parity")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SENTENCES = [
    "Unity is power.",
    "Many weak devices train one large transformer together, each a part that fits its memory.",
    "A man is eating food.",
]


def test_minilm(data_folder: Path) -> None:
    folder = data_folder / "all-MiniLM-L6-v2-fp16"
    tokenizer = Tokenizer.from_file(str(data_folder / "tokenizers" / "bert-base-uncased" / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids = torch.tensor([e.ids for e in encoded])
    mask = torch.tensor([e.attention_mask for e in encoded])
    assert mask.sum(1).unique().numel() > 1  # there is padding to be hidden

    reference = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    config, weights = load_pretrained(folder, classes=4)
    assert (config.family, config.depth, config.dim, config.heads, config.classes) == ("bert", 6, 384, 12, 4)
    model = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)
    last: list[torch.Tensor] = []
    model.blocks["5"].register_forward_hook(lambda _module, _inputs, output: last.append(output))
    with torch.no_grad():
        theirs = reference(ids, attention_mask=mask)
        model(ids)
        pooled = torch.tanh(model.exits["6"].pooler(last[0][:, 0]))  # type: ignore[union-attr, operator]
    real = mask.bool()
    assert (last[0][real] - theirs.last_hidden_state[real]).abs().max() <= 1e-5
    assert (pooled - theirs.pooler_output).abs().max() <= 1e-5


def test_stories260k_goes_to_transformers(data_folder: Path, tmp_path: Path) -> None:
    config, weights = load_llama2c(data_folder / "tinystories-llama-260k" / "stories260K.bin")
    reference = transformers.LlamaForCausalLM.from_pretrained(save_pretrained(tmp_path, config, weights)).eval()
    ids = torch.tensor([[1, 403, 407, 261, 378, 432, 383, 285]])
    with torch.no_grad():
        ours = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)(ids)[0]
        assert (ours - reference(ids).logits).abs().max() <= 1e-5
        assert ours.abs().max() > 5
