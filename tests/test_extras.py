"""A device needs few packages; one that is missing is named with the extra that brings it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cos2p.numerics.metrics import student_quantile
from cos2p.older_python import tomllib

SELDOM = (
    "sklearn", "scipy", "pyarrow", "PIL", "tokenizers", "huggingface_hub", "pandas", "matplotlib", "transformers",
    "onnx", "onnxruntime", "onnxscript", "nvflare", "ray", "tensorboard", "mlflow", "wandb", "dp_accounting",
)  # fmt: skip
BLOCK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SELDOM!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def python(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, cwd=folder, check=False)
    return done.stdout + done.stderr


def test_a_device_imports_none_of_them(tmp_path: Path) -> None:
    code = "import cos2p.fleet.device.worker, cos2p.methods, cos2p.inference.sources, cos2p.data.load; print('fine')"
    assert python(code, tmp_path).endswith("fine\n")


def test_a_devices_list_grows_on_purpose_alone() -> None:
    """Size and time on a board go with it (docs/howto/boards.md)."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    names = {re.split(r"[<>=!~; ]", entry)[0] for entry in project["dependencies"]}
    assert names == {
        "torch", "numpy", "safetensors", "pydantic", "typer", "rich", "tomli", "tomli-w", "typing_extensions", "psutil",
    }  # fmt: skip
    assert project["optional-dependencies"]["nvflare"] == ["nvflare==2.9.0"]


def test_from_python_none_of_them_is_needed(tmp_path: Path) -> None:
    code = (
        "import cos2p, cos2p.api; cos2p.run; cos2p.compare; import cos2p.cli, cos2p.inference.exporting; print('fine')"
    )
    assert python(code, tmp_path).endswith("fine\n")


def test_digits_train_without_them(tmp_path: Path) -> None:
    code = """
from cos2p.cli import main
short = ["schedule.rounds=1", "data.train_samples=100", "data.test_samples=40", "model.depth=2", "run.workers=1"]
sys.argv = ["cos2p", "run", "quickstart", "-q", "--out", "r", *(word for one in short for word in ("--set", one))]
main()
"""
    # Workers of a run would be processes of their own, which block nothing: the data is read before they start.
    said = python(code, tmp_path)
    assert (tmp_path / "r" / "result.json").is_file(), said


def test_a_table_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,1\n")
    code = """
from cos2p.data import DataConfig
from cos2p.data.load import reader_of
try:
    reader_of(DataConfig(source="csv", path=".", train="a.csv", text_column="text"))
except Exception as error:
    print(type(error).__name__, error)
"""
    said = python(code, tmp_path)
    assert "MissingExtra Reading tables needs the package pyarrow, which is not installed: pip install pyarrow" in said
    assert "the extra `tables`" in said


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
def test_students_t_is_scipys(freedom: int) -> None:
    special = pytest.importorskip("scipy.special")
    for share in (0.6, 0.95, 0.975, 0.999):
        assert student_quantile(share, freedom) == pytest.approx(float(special.stdtrit(freedom, share)), rel=1e-10)
