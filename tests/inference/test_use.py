"""From a finished run to answers: predict, evaluate and others find the figures that `result.json` has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cos2p.data.load import load_whole
from cos2p.errors import CheckpointError, ConfigError, DataError, RunError
from cos2p.inference.evaluating import evaluate, labelled
from cos2p.inference.exporting import export
from cos2p.inference.predicting import gather, predict
from cos2p.inference.sources import Trained, open_trained
from cos2p.runtime.run_setup import build_run_setup
from tests.inference.cards import answers_of, assert_same, code_blocks, predicted, run_code
from tests.runtime.small import small


def figures(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "result.json").read_text()))


def accuracy(trained: Trained, folder: Path) -> float:
    """By predict alone: the share of files whose label is the name of their folder."""
    items = gather([str(folder)], (), trained.data, trained.is_text)
    found = list(predict(trained, items, batch=7))
    return sum(p.answers[0][0] == Path(p.name).parent.name for p in found) / len(found)


def test_evaluate_and_predict_find_the_figures_of_the_run(finished: Path, pictures: Path) -> None:
    result, trained = figures(finished), open_trained(finished)
    found = evaluate(trained, labelled(trained, "", "test", {}))
    assert found.accuracy == pytest.approx(result["top1"])
    assert found.f1 == pytest.approx(result["f1"])
    assert found.top5 == pytest.approx(result["top5"])
    assert sum(map(sum, found.confusion)) == found.samples == 100
    assert accuracy(trained, pictures) == pytest.approx(result["top1"])
    assert evaluate(trained, labelled(trained, str(pictures), "test", {})).accuracy == pytest.approx(result["top1"])


@pytest.mark.parametrize("exit", [1, 3, "best"])
def test_an_exit_answers_as_it_was_evaluated(finished: Path, pictures: Path, exit: Any, tmp_path: Path) -> None:
    result = figures(finished)
    depth = result["best_exit"] if exit == "best" else exit
    trained = open_trained(finished, exit)
    assert trained.exit == depth
    assert accuracy(trained, pictures) == pytest.approx(result["exits"][str(depth)])
    folder = export(trained, tmp_path / "out", "hf")
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == depth
    assert accuracy(open_trained(folder), pictures) == pytest.approx(result["exits"][str(depth)])


def test_transformers_finds_the_figures_of_the_run(finished: Path, pictures: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="its pipelines are the judge")
    transformers.logging.disable_progress_bar()
    files = [str(file) for file in sorted(pictures.rglob("*.png"))]
    found = answers_of(run_code(code_blocks(finished / "model")[0], finished / "model", files, is_text=False))
    assert_same(found, predicted(open_trained(finished), files))
    right = [row[0][0] == Path(file).parent.name for file, row in zip(files, found, strict=True)]
    assert sum(right) / len(right) == pytest.approx(figures(finished)["top1"])
    card = (finished / "model" / "README.md").read_text()
    assert f"| {100 * figures(finished)['top1']:.1f} % |" in card
    assert 'name = "small"' in card


def test_each_devices_own_submodel_scores_what_the_device_reported(finished: Path, tmp_path: Path) -> None:
    """As it is kept, and as it is exported."""
    run_setup, reported = build_run_setup(small()), figures(finished)["devices"]
    evaluated = 0
    for name, device in reported.items():
        if device["top1"] is None:
            continue
        trained = open_trained(finished, device=name)
        own = run_setup.shards[name].test
        assert evaluate(trained, own).accuracy == pytest.approx(device["top1"])
        exported = open_trained(export(trained, tmp_path / name, "hf"))
        assert evaluate(exported, own).accuracy == pytest.approx(device["top1"])
        assert open_trained(finished / "devices" / f"{name}.safetensors").device == name
        evaluated += 1
    assert evaluated >= 2
    assert not list((finished / "devices").glob("*.task"))


def test_a_devices_file_alone_is_enough_to_export(finished: Path, tmp_path: Path) -> None:
    """On the device there is no run folder."""
    alone = tmp_path / "mine.safetensors"
    alone.write_bytes(next((finished / "devices").glob("*.safetensors")).read_bytes())
    trained = open_trained(alone)
    again = open_trained(export(trained, tmp_path / "hf", "hf"))
    images = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(again.outputs(images), trained.outputs(images), atol=1e-5, rtol=0)
    assert again.classes == trained.classes
    card = (tmp_path / "hf" / "README.md").read_text()
    assert f"the own submodel of the device `{trained.device}`" in card
    assert "## Fleet" not in card


def test_onnx_answers_as_torch_does(finished: Path, pictures: Path, tmp_path: Path) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime", reason="it is the judge")
    trained = open_trained(finished)
    folder = export(trained, tmp_path / "onnx", "onnx")
    assert {file.name for file in folder.iterdir()} == {
        "model.onnx",
        "config.json",
        "preprocessor_config.json",
        "README.md",
    }
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    images = torch.rand(5, 1, 8, 8)
    theirs = session.run(None, {"pixel_values": images.expand(-1, 3, -1, -1).numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(theirs), trained.outputs(images), atol=1e-4, rtol=0)
    files = [str(file) for file in sorted(pictures.rglob("*.png"))]
    used = run_code(code_blocks(folder)[0], folder, files, is_text=False)
    assert_same(answers_of(used), predicted(trained, files))


def test_what_is_not_there_is_said(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is nothing at"):
        open_trained(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"neither a run folder .* nor a Hugging Face folder"):
        open_trained(tmp_path)
    with pytest.raises(ConfigError, match="there is no exit 9; the model has exits 1 to 4"):
        open_trained(finished, 9)
    with pytest.raises(RunError, match="holds no submodel of 'pi'; there are those of jetson-agx-orin-64gb-1"):
        open_trained(finished, device="pi")
    with pytest.raises(CheckpointError, match="is not a device's own submodel"):
        open_trained(finished / "weights.safetensors")
    with pytest.raises(RunError, match="is not empty"):
        export(open_trained(finished), finished, "hf")
    with pytest.raises(ConfigError, match="trains no adapter"):
        export(open_trained(finished), tmp_path / "p", "peft")
    with pytest.raises(DataError, match="there is no file cat"):
        gather(["cat.png"], (), open_trained(finished).data, is_text=False)
    (tmp_path / "odd.csv").write_text("picture,label\n1.png,3\n")
    with pytest.raises(DataError, match="it has picture, label; say which with --image-column"):
        gather([str(tmp_path / "odd.csv")], (), open_trained(finished).data, is_text=False)


def test_an_unreadable_image_is_named_and_the_rest_goes_on(finished: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = next(pictures.rglob("*.png"))
    trained = open_trained(finished)
    found = list(predict(trained, gather([str(tmp_path / "bad.png"), str(good)], (), trained.data, False), top=3))
    assert "no image format" in found[0].error
    assert len(found[1].answers) == 3
    assert found[1].answers[0][1] >= found[1].answers[1][1]


def test_labels_by_name_or_by_number(finished: Path, pictures: Path, tmp_path: Path) -> None:
    """A folder with some of the classes is evaluated by their names; a label nobody knows is named."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "7").symlink_to(pictures / "7")
    trained = open_trained(finished)
    assert set(labelled(trained, str(tmp_path / "data"), "test", {}).labels.tolist()) == {7}
    (tmp_path / "data" / "cat").symlink_to(pictures / "3")
    with pytest.raises(DataError, match="has the label 'cat'; the model's classes are 0, 1, 2"):
        labelled(trained, str(tmp_path / "data"), "test", {})
    data = trained.data.model_copy(update={"source": "folder", "path": str(pictures)})
    assert len(load_whole(data, trained.classes)) == 100


def test_a_device_file_says_what_it_is(finished: Path) -> None:
    file = next((finished / "devices").glob("*.safetensors"))
    with safe_open(file, framework="pt") as opened:
        facts = json.loads(opened.metadata()["cos2p"])["facts"]
    assert facts["classes"] == list("0123456789")
    assert facts["task"].startswith(facts["device"])
