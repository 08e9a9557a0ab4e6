"""The command line as a whole: help, suggestions for mistyped words, and exit statuses."""

import os
import re
import signal
import subprocess
import sys

import click
import pytest

from autogpu import __version__
from autogpu.cli import main as frame
from autogpu.cli import suggestions
from autogpu.errors import InstallError
from autogpu.policy import KEYS
from tests.support.environments import ROOT


def test_help_lists_every_verb_and_imports_none():
    code = (
        "import sys; from autogpu.cli.main import run; status = run(['--help'])\n"
        "loaded = [m for m in sys.modules if m.startswith('autogpu.')]\n"
        "assert sorted(loaded) == ['autogpu.cli', 'autogpu.cli.main', 'autogpu.errors'], loaded\n"
        "assert 'rich' not in sys.modules and 'subprocess' not in sys.modules\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [verb for verb in frame.VERBS if f"\n  {verb} " not in done.stdout] == []


def shown(capsys, *arguments):
    assert frame.run(list(arguments)) == 0
    return capsys.readouterr().out


def test_version_is_printed(capsys):
    assert shown(capsys, "-V") == shown(capsys, "--version") == f"autogpu {__version__}\n"


@pytest.mark.parametrize("verb", frame.VERBS)
def test_every_verb_has_help_and_no_arguments_print_the_main_help(capsys, verb):
    assert f"Usage: autogpu {verb} " in shown(capsys, verb, "--help")
    assert shown(capsys) == shown(capsys, "--help")


def printed_helps():
    root = click.Context(frame.cli, info_name="autogpu", terminal_width=80)
    for name, command in [("", frame.cli), *((verb, frame.cli.get_command(root, verb)) for verb in frame.VERBS)]:
        yield name, command.get_help(click.Context(command, root, info_name=name, terminal_width=80))
        # The root has no entry in `commands`, because it imports each verb only when it is used.
        for below in filter(None, getattr(command, "commands", {}).values()):
            yield name, below.get_help(click.Context(below, root, info_name=below.name, terminal_width=80))


HELPS = list(printed_helps())
EXAMPLES = [(verb, line.strip()) for verb, text in HELPS for line in text.partition("Examples:\n")[2].splitlines()]


@pytest.mark.parametrize(("verb", "said"), HELPS, ids=[verb for verb, _ in HELPS])
def test_help_has_exit_statuses_and_two_examples_that_can_be_copied(verb, said):
    examples = said.partition("Examples:\n")[2].splitlines()
    assert len(examples) >= 2
    # In an interactive zsh, # does not begin a comment.
    assert [line for line in examples if "autogpu" not in line.lower() or "#" in line] == []
    statuses = said.partition("\n  Exit status: ")[2].partition("\n\n")[0]
    assert statuses.endswith(".") if statuses else verb not in ("pick", "wait", "doctor")
    assert all(line.startswith("  ") for line in statuses.splitlines()[1:])
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(("verb", "said"), HELPS[1:], ids=[verb for verb, _ in HELPS[1:]])
def test_help_begins_with_an_imperative_of_at_most_70_characters(verb, said):
    first_sentence = re.split(r"\.(?:\s|$)", " ".join(said.split("\n\n")[1].split()))[0]
    assert len(first_sentence) <= 70
    assert not re.match(r"(The|A|It|This|Return|Prints|Shows|autogpu)\b", first_sentence)


def test_help_explains_each_variable_of_its_examples():
    keys = {key.variable: key.dotted for key in KEYS}
    parts = [text.partition("Examples:\n") for _, text in HELPS]
    used = [(name, told) for told, _, examples in parts for name in re.findall(r"\b(AUTOGPU\w*)=", examples)]
    assert {name for name, _ in used} >= {"AUTOGPU"}
    assert [name for name, told in used if name not in told and keys.get(name, name) not in told] == []


@pytest.mark.parametrize(
    ("arguments", "said", "verb"),
    [
        ("instal", "Did you mean `autogpu install`?", ""),
        ("xyzzy", "No such command 'xyzzy'.", ""),
        ("top", "Did you mean `autogpu status --watch`?", ""),
        ("squeue", "Did you mean `autogpu status`?", ""),
        ("help status", "Did you mean `autogpu --help`?", ""),
        ("config chek", "'chek'", " config"),
        ("config check", "Missing argument 'FILES...'", " config check"),
        ("install --metod pth", "--method", " install"),
        ("run --cuont 2 -- x", "--count", " run"),
        ("wait 4121", "Got unexpected extra argument (4121)", " wait"),
        ("pick --frob 2", "--frob", " pick"),
        ("run --count", "Option '--count' requires an argument.", " run"),
        ("--frob", "--frob", ""),
        ("host-setup --check --print", "--check and --print can't be combined", " host-setup"),
        ("status --mine --user eve", "--mine can't be combined with --user", " status"),
        ("run --hold --count two -- true", "--count: select.count can't be", " run"),
        ("wait --mine --count 2", "--mine can't be combined with --count", " wait"),
        ("wait --job 1 --mine --need 1G", "can't be combined with --need and --mine", " wait"),
        ("wait --timeout 100ms", 'can\'t be "100ms"', " wait"),
        ("status --on a --format prometheus", "--format prometheus can't be combined with --on", " status"),
        ("status --format html --mine --json", "--format html can't be combined with --mine and --json", " status"),
        ("status --format html --on a --watch", "--format html can't be combined with --watch", " status"),
        ("status --format html --on ,", "--on: expected at least one host, such as lab1", " status"),
        ("status --format json", "For JSON, use --json.", " status"),
        ("status --query-gpu=name --format=csv", "Did you mean --json?", " status"),
        ("status -l 2", "Did you mean --watch?", " status"),
        ("status -o json", "Did you mean --json?", " status"),
        ("status -n 1", "Did you mean --interval?", " status"),
        ("status --me", "Did you mean --mine?", " status"),
        ("status -u anna", "Did you mean --user?", " status"),
        ("run --gpus 2 -- x", "Did you mean --count?", " run"),
        ("run -n 2 -- x", "Did you mean --count?", " run"),
        ("pick -i 0", "Did you mean --devices?", " pick"),
        ("wait --mem 6G", "Did you mean --need?", " wait"),
        ("wait -t 1h", "Did you mean --timeout?", " wait"),
        ("status --watch --json", "--watch can't be combined with --json", " status"),
        ("status --watch", "--watch needs a terminal for input and output", " status"),
    ],
)
def test_usage_error_shows_the_mistake_and_points_to_the_help(capsys, arguments, said, verb):
    assert frame.run(arguments.split()) == 2
    printed = "(exit 2)\n" if verb == " pick" else ""  # a shell that evaluates this line fails as well
    out, err = capsys.readouterr()
    what, where = err.splitlines()
    assert (out, what[: len("autogpu: ")], where) == (printed, "autogpu: ", f"autogpu: see `autogpu{verb} --help`")
    assert said in what


def test_each_suggested_option_and_command_exists():
    root = click.Context(frame.cli, info_name="autogpu")
    commands = {verb: frame.cli.get_command(root, verb) for verb in frame.VERBS}
    options = {option for command in commands.values() for each in command.params for option in each.opts}
    assert set(suggestions.OPTIONS) <= options
    names = [name for names in suggestions.COMMANDS.values() for name in names.split()]
    assert commands.keys().isdisjoint(names)
    assert len(names) == len(set(names))
    for verb, *words in map(str.split, suggestions.COMMANDS):
        known = {option for each in commands[verb].params for option in each.opts} if verb in commands else set()
        below = getattr(commands.get(verb), "commands", {})
        assert verb in commands or verb in ("--help", "--version")
        assert [word for word in words if word not in known and word not in below] == []


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InstallError("x is full", remedy="empty x"), 1, "autogpu: x is full\nautogpu: empty x\n"),
        (KeyboardInterrupt(), -signal.SIGINT, "autogpu: interrupted\n"),
        (click.ClickException("no such file"), 1, "autogpu: no such file\n"),
        (OSError(28, "No space left on device"), 1, "autogpu: can't write the output: No space left on device\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "autogpu: /x: Permission denied\n"),
    ],
    ids=["autogpu-error", "ctrl-c", "click-error", "disk-full", "file-error"],
)
def test_exception_becomes_a_message_and_an_exit_status(capsys, monkeypatch, error, status, said):
    def fail():
        raise error

    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: click.Command("install", callback=fail))
    assert frame.run(["install"]) == status
    assert capsys.readouterr().err.lstrip() == said


def test_return_value_of_a_verb_is_the_exit_status(monkeypatch):
    command = click.Command("install", callback=lambda: 75)
    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: command)
    with pytest.raises(SystemExit) as left:
        frame.main(["install"])
    assert left.value.code == 75


def test_control_characters_in_arguments_never_reach_the_terminal(tmp_path, capsys):
    assert frame.run(["install", "--target", f"{tmp_path}/\x1b]0;title\x07$(id)"]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "mkdir -p '" in said


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["config"], ["config", "--help"], ["--help"], ["pick", "--help"]], ids=" ".join)
def test_closed_pipe_ends_the_command_without_a_message(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "autogpu", *arguments]
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
