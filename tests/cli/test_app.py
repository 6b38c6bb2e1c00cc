"""What holds for every verb: help, version, completion, and how errors end."""

from __future__ import annotations

import subprocess
import sys
from typing import NoReturn

import pytest
from typer.testing import CliRunner

import cos2p
from cos2p import errors
from cos2p.cli import EXIT_DEFECT, main
from cos2p.cli.app import EXIT_CODES, app


def cli(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_help_names_the_verbs_and_the_exit_codes() -> None:
    code, out, _ = cli("--help")
    assert code == 0
    assert "recipes" in out
    assert "Exit codes: 0 done" in out


def test_every_error_has_its_exit_code_in_the_help() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Cos2pError)]
    missing = {kind.exit_code for kind in kinds if f" {kind.exit_code} " not in EXIT_CODES.replace("\n", " ")}
    assert len(kinds) >= 10
    assert missing == set()
    assert f" {EXIT_DEFECT} " in EXIT_CODES


def test_help_and_completion_do_not_wait_for_torch() -> None:
    """Importing torch takes a second or more; asking for help must not."""
    program = (
        "import sys; sys.argv = ['cos2p', '--help']\n"
        "from cos2p.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "from cos2p.cli.recipes import complete_recipe\n"
        "assert 'quickstart' in complete_recipe('qu')\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_version() -> None:
    assert cli("--version") == (0, f"cos2p {cos2p.__version__}\n", "")


def test_an_unknown_verb_or_option_is_a_usage_error() -> None:
    assert cli("trian")[0] == 2
    assert cli("run", "--rounds", "3")[0] == 2


def main_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cos2p", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_defect_keeps_its_traceback_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> NoReturn:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("cos2p.cli.recipes.recipe_text", broken)
    assert main_with(monkeypatch, "recipes", "show", "quickstart") == EXIT_DEFECT
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "ZeroDivisionError: a defect" in shown
    assert "Please report it" in shown


def test_ctrl_c_in_any_verb_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("cos2p.cli.recipes.recipe_text", interrupted)
    assert main_with(monkeypatch, "recipes", "show", "quickstart") == 130
    assert capsys.readouterr().err == "stopped\n"


def test_an_error_is_one_line_whatever_it_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hostile(name: str) -> NoReturn:
        raise errors.DataError("the file 'a\nb\x1b[2J' is not there")

    monkeypatch.setattr("cos2p.cli.recipes.recipe_text", hostile)
    assert main_with(monkeypatch, "recipes", "show", "quickstart") == 6
    assert capsys.readouterr().err == "error: the file 'a?b?[2J' is not there\n"
