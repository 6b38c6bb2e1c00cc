from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.recipes import recipe_text, shipped_recipes


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["recipes", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_ls_gives_name_and_description_of_each() -> None:
    code, out, _ = cli("ls")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == shipped_recipes()
    assert "handwritten digits" in out


def test_ls_as_json() -> None:
    entries = json.loads(cli("ls", "--json")[1])
    assert [entry["name"] for entry in entries] == shipped_recipes()
    assert all(entry["description"] for entry in entries)


def test_json_may_stand_before_the_verb() -> None:
    assert CliRunner().invoke(app, ["--json", "recipes", "ls"]).stdout == cli("ls", "--json")[1]


def test_show_prints_the_text_with_its_comments() -> None:
    code, out, _ = cli("show", "quickstart")
    assert (code, out) == (0, recipe_text("quickstart"))
    assert "# " in out


def test_an_unknown_name_gets_a_suggestion() -> None:
    code, out, err = cli("show", "quickstrt")
    assert (code, out) == (2, "")
    assert err.startswith("error: no recipe 'quickstrt'; did you mean 'quickstart'?")


def test_cp_writes_the_file_and_never_replaces_one_unasked(tmp_path: Path) -> None:
    target = tmp_path / "mine.toml"
    assert cli("cp", "quickstart", target)[0] == 0
    assert target.read_text(encoding="utf-8") == recipe_text("quickstart")
    target.write_text("# my work", encoding="utf-8")
    code, _, err = cli("cp", "quickstart", target)
    assert code == 2
    assert "--force" in err
    assert target.read_text(encoding="utf-8") == "# my work"
    assert cli("cp", "quickstart", target, "--force")[0] == 0
    assert target.read_text(encoding="utf-8") == recipe_text("quickstart")


def test_cp_without_a_file_uses_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("cp", "quickstart")[0] == 0
    assert (tmp_path / "quickstart.toml").is_file()


def test_cp_into_a_folder(tmp_path: Path) -> None:
    assert cli("cp", "quickstart", tmp_path)[0] == 0
    assert (tmp_path / "quickstart.toml").is_file()


def test_cp_to_an_impossible_place_is_one_line(tmp_path: Path) -> None:
    code, _, err = cli("cp", "quickstart", tmp_path / "no" / "such" / "folder.toml")
    assert code == 2
    assert err.count("\n") == 1


def test_validate_says_what_would_run(tiny: Path) -> None:
    code, out, _ = cli("validate", tiny, "--fields", "--set", "schedule.updates=40")
    assert code == 0
    assert out.splitlines() == [
        "ok",
        "method   Co-S²P (cos2p), seed 0",
        "devices  2: 2 × pi (R 0.25, batch 16)",
        "model    vit-nano: 2 blocks of width 64, about 0.10 M parameters",
        "data     digits, 120 training samples",
        "ends     after 2 rounds or after 40 client updates",
    ]


def test_validate_names_every_wrong_field_in_one_go(tiny: Path) -> None:
    changes = [
        "training.lr=-1",
        "schedule.rounds=many",
        "fleet.devices.0.colour=red",
        "method.masks.rounds=-1",
        "model.size=vit-nan",
        "surprise=1",
    ]
    code, out, err = cli("validate", tiny, *(part for change in changes for part in ("--set", change)))
    assert (code, out) == (2, "")
    for change in changes:
        field = change.partition("=")[0]
        assert f"error: {tiny}: {field}: " in err
    assert len(err.splitlines()) == len(changes)


def test_validate_as_json(tiny: Path) -> None:
    found = json.loads(cli("validate", tiny, "--json", "--fields")[1])
    assert (found["ok"], found["problems"], len(found["plan"])) == (True, [], 5)
    code, out, _ = cli("validate", tiny, "--json", "--set", "training.epochs=0")
    assert code == 2
    assert json.loads(out)["problems"] == ["training.epochs: Input should be greater than or equal to 1 (got 0)"]


def test_validate_says_when_the_data_is_not_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COS2P_DATA", raising=False)
    changes = ["--set", "data.source=idx", "--set", "data.path=nowhere", "--set", "data.train=x-images-idx3"]
    code, out, _ = cli("validate", tiny, "--fields", *changes)
    assert code == 0  # the recipe is right; the data may come later
    assert "not found" in out
    code, _, err = cli("validate", tiny, *changes)
    assert code == 6
    assert "no data at" in err


def test_validate_reads_the_data_and_cuts_the_first_tasks(tiny: Path) -> None:
    code, out, _ = cli("validate", tiny)
    assert code == 0
    assert "samples  108 train, 12 validation, 50 test; 10 classes (0, 1, 2, 3, 4, 5, 6, 7 ...); 8×8×1 pixels" in out
    assert "plan     2 × pi-1: a window, R 0.25; " in out
    assert " of 8.00 GB, " in out
    assert "in all on this machine" in out


def test_validate_takes_another_method(tiny: Path) -> None:
    code, out, _ = cli("validate", tiny, "--fields", "--method", "fedavg")
    assert code == 0
    assert "method   FedAvg (full) (fedavg), seed 0" in out.splitlines()


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("fleet.devices.0.memory=1MB", 4, "1.00 MB"),
        ("model.pretrained=nowhere/at/all", 5, "no checkpoint folder at nowhere/at/all"),
        ("data.train_samples=99999", 6, "data.train_samples asks for 99999"),
    ],
)
def test_validate_says_what_would_end_the_run(tiny: Path, change: str, code: int, said: str) -> None:
    found, _, err = cli("validate", tiny, "--set", change)
    assert found == code
    assert said in err


def test_validate_of_a_file_that_is_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("name = ", encoding="utf-8")
    code, _, err = cli("validate", file)
    assert code == 2
    assert "not valid TOML" in err
    file.write_bytes(b"\xff\xfe\x00")
    assert cli("validate", file)[0] == 2
