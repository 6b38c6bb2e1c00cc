from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTForImageClassification, ViTImageProcessor

from cos2p import ElasticTransformer, SubmodelSpec, extract
from cos2p.data import Bundle, DataConfig, Examples
from cos2p.data.text import tokenize_answers
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import Classes
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import run
from tests.runtime.test_recorded import recipe


def test_chance_and_the_most_frequent_class() -> None:
    bundle: Bundle = build_run_setup(Recipe.load("quickstart")).bundle
    test = bundle.test.subset(torch.argsort(bundle.test.labels)[:40])
    own = [test.subset(torch.tensor([0, 1, 39])), test.subset(torch.tensor([39])), test.subset(torch.tensor([]).long())]
    classes = Classes.of(Bundle(bundle.train, bundle.validation, test), own)
    assert classes.names == tuple("0123456789")
    counts = torch.bincount(test.labels)
    assert classes.figures() == {
        "classes": list("0123456789"), "chance": 0.1, "majority": pytest.approx(float(counts.max()) / 40),
        "client_majority": 0.75,
    }  # fmt: skip
    assert classes.facts()["classes"] == 10
    assert classes.facts()["test"] == 40
    assert Classes().figures() == {"classes": [], "chance": None, "majority": None, "client_majority": None}
    assert Classes().facts() == {"classes": 0}


def test_answers_have_a_most_frequent_one_and_no_chance() -> None:
    config = DataConfig(source="csv", train="-", text_column="text", task="instruction", tokenizer="bytes")
    tokens = tokenize_answers(["a"] * 4, ["yes"] * 3 + ["no"], config)
    some = Examples(tokens.ids, torch.tensor([1, 1, 1, 0]), (), pad_id=0, vocabulary=259)
    found = Classes.of(Bundle(some, some, some)).figures()
    assert found == {"classes": [], "chance": None, "majority": 0.75, "client_majority": None}


def test_the_exported_folder_says_how_images_are_prepared_and_what_the_classes_are_called(tmp_path: Path) -> None:
    """`transformers` alone, from the folder alone, computes what the run's model computes."""
    result = run(recipe("fedbuff", 1), tmp_path / "run")
    folder = tmp_path / "run" / "model"
    assert json.loads((folder / "config.json").read_text())["id2label"] == {str(i): str(i) for i in range(10)}
    assert (folder / "preprocessor_config.json").exists()
    assert (folder / "model.safetensors").stat().st_mode & 0o044 == 0o044
    assert result["chance"] == 0.1
    run_setup = build_run_setup(recipe("fedbuff", 1))
    images, _ = run_setup.bundle.test.batch(torch.arange(20))
    model, prepare = ViTForImageClassification.from_pretrained(folder), ViTImageProcessor.from_pretrained(folder)
    colour = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    spec = SubmodelSpec.full(run_setup.config)
    weights = extract(load_file(tmp_path / "run" / "weights.safetensors"), run_setup.config, spec)
    ours = ElasticTransformer(run_setup.config, spec).load(weights)
    with torch.no_grad():
        theirs = model(**prepare(list(colour), return_tensors="pt")).logits
        expected = ours(run_setup.recipe.data.normalize(images))[-1]
    torch.testing.assert_close(theirs, expected, atol=0.02, rtol=0.0)  # luma is rounded to whole numbers
    assert float(expected.std(0).max()) > 0.05  # and the images do make a difference
