"""The frame of the command line: help that teaches, nearest names, one place for exit statuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import click
import pytest

from autogpu import __version__
from autogpu.cli import main as frame
from autogpu.errors import InstallError
from tests.support.environments import ROOT


def test_help_lists_every_verb_and_imports_none() -> None:
    code = (
        "import sys; from autogpu.cli.main import run; status = run(['--help'])\n"
        "loaded = [m for m in sys.modules if m.startswith('autogpu.')]\n"
        "assert sorted(loaded) == ['autogpu.cli', 'autogpu.cli.main', 'autogpu.errors'], loaded\n"
        "assert 'rich' not in sys.modules and 'subprocess' not in sys.modules\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=str(ROOT), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [verb for verb in frame.VERBS if f"\n  {verb} " not in done.stdout] == []


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture) -> None:
    assert frame.run([]) == 0
    assert capsys.readouterr().out.startswith("Usage: autogpu ")


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(capsys: pytest.CaptureFixture, option: str) -> None:
    assert frame.run([option]) == 0
    assert capsys.readouterr().out == f"autogpu {__version__}\n"


@pytest.mark.parametrize("verb", [None, *frame.VERBS])
def test_help_teaches_with_two_examples(capsys: pytest.CaptureFixture, verb: str) -> None:
    assert frame.run([verb, "--help"] if verb else ["--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:")[2].strip().splitlines()
    assert len(examples) >= 2
    assert all("autogpu" in line or "AUTOGPU" in line for line in examples)


@pytest.mark.parametrize("verb", ["", "run", "config check", "host-setup"])
def test_help_of_a_verb_is_its_help(capsys: pytest.CaptureFixture, verb: str) -> None:
    assert frame.run([*verb.split(), "--help"]) == 0
    option = capsys.readouterr().out
    assert frame.run(["help", *verb.split()]) == 0
    assert capsys.readouterr().out == option


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("help stats", "no verb 'stats'; did you mean status?"),
        ("help config chek", "no verb 'chek'; did you mean check?"),
        ("help status all", "autogpu status has no verb 'all'"),
    ],
)
def test_help_of_no_verb_names_the_nearest(capsys: pytest.CaptureFixture, arguments: str, said: str) -> None:
    assert frame.run(arguments.split()) == 2
    assert capsys.readouterr().err.startswith(f"autogpu: {said}\n")


@pytest.mark.parametrize("verb", frame.VERBS)
def test_line_in_the_table_agrees_with_the_verb(verb: str) -> None:
    command = frame.LazyGroup().get_command(click.Context(frame.cli), verb)
    assert command is not None
    assert command.name == verb
    assert re.fullmatch(r"[A-Z].*\.", frame.VERBS[verb][1])


def test_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert frame.run(["instal"]) == 2
    said = capsys.readouterr()
    assert said.err == "autogpu: no verb 'instal'; did you mean install?\nautogpu: see `autogpu --help`\n"
    assert said.out == ""


def test_unknown_verb_of_a_verb_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert frame.run(["config", "chek"]) == 2
    said = capsys.readouterr().err
    assert said == "autogpu: no verb 'chek'; did you mean check?\nautogpu: see `autogpu config --help`\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run --cuont 2 -- x", "no option --cuont; did you mean --count?\nautogpu: see `autogpu run --help`"),
        ("pick --gpus 2", "no option --gpus; did you mean --count?\nautogpu: see `autogpu pick --help`"),
        ("status --gpus", "no option --gpus\nautogpu: see `autogpu status --help`"),
        ("run --buzz -- x", "no option --buzz\nautogpu: see `autogpu run --help`"),
        (
            "config check --sytem x",
            "no option --sytem; did you mean --system?\nautogpu: see `autogpu config check --help`",
        ),
        ("run --count", "Option '--count' requires an argument.\nautogpu: see `autogpu run --help`"),
        ("--frob", "no option --frob\nautogpu: see `autogpu --help`"),
    ],
)
def test_a_wrong_option_names_one_that_was_meant_and_the_help_of_its_verb(
    capsys: pytest.CaptureFixture, arguments: str, said: str
) -> None:
    assert frame.run(arguments.split()) == 2
    assert capsys.readouterr().err == f"autogpu: {said}\n"


@pytest.mark.parametrize("verb", ["pick", "wait", "doctor"])
def test_exit_statuses_are_a_paragraph_of_the_help(capsys: pytest.CaptureFixture, verb: str) -> None:
    assert frame.run([verb, "--help"]) == 0
    about = capsys.readouterr().out.partition("\n  Exit status: ")[2].partition("\n\n")[0]
    assert all(line.startswith("  ") for line in about.splitlines()[1:])
    assert about.endswith(".")


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture) -> None:
    assert frame.run(["install", "--metod", "pth"]) == 2
    assert "--method" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InstallError("x is full", remedy="empty x"), 1, "autogpu: x is full\nautogpu: empty x\n"),
        (KeyboardInterrupt(), -signal.SIGINT, "autogpu: interrupted\n"),
        (click.ClickException("no such file"), 1, "autogpu: no such file\n"),
        (OSError(28, "No space left on device"), 1, "autogpu: can't write: No space left on device\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "autogpu: /x: Permission denied\n"),
    ],
    ids=["ours", "ctrl-c", "click", "full", "file"],
)
def test_error_becomes_lines_and_a_status(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: click.Command("install", callback=fail))
    assert frame.run(["install"]) == status
    assert capsys.readouterr().err.lstrip() == said


def test_status_of_a_verb_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    command = click.Command("install", callback=lambda: 75)
    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: command)
    with pytest.raises(SystemExit) as left:
        frame.main(["install"])
    assert left.value.code == 75


def test_no_argument_reaches_the_terminal_as_it_is(tmp_path, capsys: pytest.CaptureFixture) -> None:
    assert frame.run(["install", "--target", f"{tmp_path}/\x1b]0;title\x07$(id)"]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "mkdir -p '" in said


@pytest.mark.parametrize("arguments", [["config"], ["config", "--help"], ["--help"]], ids=" ".join)
def test_a_reader_that_leaves_ends_the_command_as_it_ends_any_other(arguments: list) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "autogpu", *arguments]
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_closed_output_is_an_error() -> None:
    shell = ["sh", "-c", '"$@" >&-', "sh"]
    for arguments in (["status", "--json"], ["config"]):
        command = [*shell, sys.executable, "-m", "autogpu", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (1, "autogpu: can't write: Bad file descriptor\n")
    command = [*shell, sys.executable, "-m", "autogpu", "run", "--", "true"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0, "it prints nothing itself"
