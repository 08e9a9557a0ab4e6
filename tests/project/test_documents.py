"""Checks of the pages: links, policies and commands are valid, and the output shown is what the commands print."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from autogpu import variables
from autogpu.cli.main import cli
from autogpu.cli.status_screen import View, lines
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.history import RUNS as RUNS_TO_LEARN
from autogpu.policy import KEYS, problems_of
from autogpu.policy.model import Mistake
from demo import pictures
from tests.gpusim import Server
from tests.gpusim.__main__ import DEFAULT_FLEET, fleet_named
from tests.support import environments
from tests.support.browser import NO_CHROMIUM, chromium
from tests.support.tensorflow_runner import Runner

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *DOCS]
ENGLISH_OF = {
    ROOT / "README.zh-CN.md": ROOT / "README.md",
    **{page: ROOT / "docs" / page.name for page in DOCS if page.parent.name == "zh-CN"},
}

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\S*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
COMMENT = re.compile(r" *# .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
# A command begins at the start of a line, or after variables, `$(`, `sudo`, `&&` or another program's `--`.
COMMAND = re.compile(r"(?:^|\$\(|sudo |-- |&& )(?:\w+=\S+ )*autogpu(?![\w./-])([^)]*)")
# The comment above a block whose output is tested. "on" gives the simulated server; the default is that of `lab.toml`.
# "again" means that the script allocates that many GiB and has already run often enough for autogpu to learn its need.
RUNS = re.compile(
    r"<!-- runs(?P<tensorflow> with TensorFlow)?(?: on (?P<fleet>[\w-]+))?(?:, again with (?P<gib>[\d.]+) GiB)? -->\n\Z"
)
MARK = re.compile(r"<!--.*?-->\n")
WORDS = re.compile(r"<text [^>]*>([^<]+)")
STATUS = "<!-- status of make lab -->\n"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. ``line`` is the line number of its fence, ``before`` the text of the page above it."""

    page: Path
    line: int
    kind: str
    text: str
    before: str

    def __str__(self):
        return f"{name_of(self.page)}:{self.line}"


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            before = text[: found.start()]
            yield Block(page, before.count("\n") + 1, found["kind"], found["text"], before)


BLOCKS = list(blocks())


def typed():
    """Yield each line that a reader types into a shell, as ``(place, line)``."""
    for block in BLOCKS:
        for line in block.text.splitlines():
            if block.kind == "sh" or (block.kind == "console" and line.startswith("$ ")):
                yield str(block), line.removeprefix("$ ")


def commands():
    """Yield each ``autogpu`` command in a shell block or in the text, as ``(place, arguments)``."""
    proses = [(name_of(page), FENCE.sub("", page.read_text(encoding="utf-8"))) for page in PAGES]
    spans = [(name, span) for name, prose in proses for span in INLINE.findall(prose)]
    for place, line in (*typed(), *spans):
        yield from ((place, arguments) for arguments in arguments_in(line))


def arguments_in(line):
    line = re.sub(r"\$\((?:command -v|which) autogpu\)", "autogpu", line)
    # A command ends before a comment, a pipe, a redirection or the next command.
    return [found.partition(" && ")[0].strip() for found in COMMAND.findall(re.split(r"\s+[#|>&](?!&)", line)[0])]


def test_no_shell_line_contains_a_comment():
    """An interactive zsh does not treat ``#`` as the start of a comment."""
    lines = [line for _, line in typed()]
    assert len(lines) > 50
    assert [line for line in lines if re.search(r"(\S\s+|^)# ", line)] == []


@pytest.mark.parametrize("page", PAGES[:2], ids=name_of)
def test_readme_has_at_most_120_lines(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 120


def slugs(page):
    """Return the anchors that GitHub and MkDocs make from a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)]


def test_every_link_has_a_target():
    dead = []
    for page in PAGES:
        for target in LINK.findall(INLINE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if not file.exists() or (anchor and anchor not in slugs(file)):
                dead.append((name_of(page), target))
    assert dead == []


def test_python_files_named_in_contributing_exist():
    folders = ("autogpu", "sitecustomize_template", "tests", "benchmarks", "docs", "demo")
    there = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = INLINE.findall((ROOT / "CONTRIBUTING.md").read_text())
    named = [text for text in found if re.fullmatch(r"[\w/]+\.py", text)]
    assert named
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


def test_every_page_is_in_the_site_and_linked_from_its_index():
    site, first = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs" / "index.md").read_text()
    names = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS if page.name != "index.md"]
    assert [name for name in names if f": {name}\n" not in site or f"({name})" not in first] == []


@pytest.mark.parametrize("chinese", ENGLISH_OF, ids=name_of)
def test_chinese_page_has_the_same_structure_as_the_english_page(chinese):
    assert contents(chinese) == contents(ENGLISH_OF[chinese])


@pytest.mark.parametrize("page", ENGLISH_OF, ids=name_of)
def test_chinese_paragraph_is_one_line(page):
    """A browser shows a line break as a space, but Chinese has no spaces between words."""
    text = FENCE.sub("", MARK.sub("", page.read_text(encoding="utf-8")))
    assert re.findall(r"(?<=\S)\n(?! *- |\d+\. |\|).+", text) == []


def contents(page):
    """Return the parts of a page that must be equal in its translation."""
    whole = MARK.sub("", page.read_text(encoding="utf-8"))
    text = FENCE.sub("", whole)
    code = [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]  # long code may span two lines
    prose = LINK.sub("]", re.sub(r"`[^`]+`", "", text))
    return {
        "headings": re.findall(r"^#+(?= )", text, re.MULTILINE),
        # Only comments in blocks are translated. Output is tested on the English page, so the marks are removed.
        "blocks": [(found["kind"], COMMENT.sub("", found["text"])) for found in FENCE.finditer(whole)],
        "code": set(code),
        "numbers": set(re.findall(r"\d+(?:\.\d+)*", prose)),
        "rows of tables": [found.count("\n") for found in TABLE.findall(text)],
    }


@pytest.fixture(scope="module")
def generate():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "generate.py")))


def test_generated_pages_are_up_to_date_and_have_every_policy_key(generate):
    made = generate.documents()
    assert {name: (ROOT / name).read_text(encoding="utf-8") for name in made} == made, "run: make docs"
    assert len(re.findall(r"^#### .", made["docs/policy.md"], re.MULTILINE)) == len(KEYS)


def test_each_policy_key_has_one_explanation(generate):
    written = (ROOT / "docs" / "policy-keys.toml").read_text(encoding="utf-8")
    assert generate.explanations(written).keys() == {key.dotted for key in KEYS}
    misspelt = written.replace("\nwait = ", "\nwaiting = ").replace("locked = ", "lokced = ")
    with pytest.raises(ValueError, match=r"text: \['locked', 'select.wait'\]; .*'lokced', 'select.waiting'\]"):
        generate.explanations(misspelt)


RULES = {
    "import _autogpu_hook": [],
    "import os; exec(os.environ['X'])": ["exec"],
    "import base64, urllib.request": ["encoded", "network"],
    "from os import popen as p": ["process"],
    "import os\nos.system('x')": ["process"],
    "def later():\n    from pathlib import Path": ["file"],
    "subprocess:run": ["process"],
}


def test_rule_that_a_start_up_file_breaks_is_reported_as_broken(generate):
    for text, broken in RULES.items():
        answers = generate.rules(f"# autogpu start-up file\n{text}\n")
        no = " ".join(rule for rule, answer in answers.items() if answer == "no")
        assert [word for word in ("exec", "encoded", "network", "process", "file") if word in no] == broken, text


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "toml"], ids=str)
def test_policy_shown_on_a_page_is_valid(tmp_path, block):
    file = tmp_path / "autogpu.toml"
    file.write_text(block.text, encoding="utf-8")
    is_system = "locked" in block.text or "[limits" in block.text or "per_user" in block.text
    problems = problems_of(file, os.environ, is_system=is_system)
    assert [problem for problem in problems if problem.mistake is not Mistake.UNKNOWN_GROUP] == []


def test_every_command_on_a_page_can_be_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("autogpu.toml", "draft.toml"):
        (tmp_path / name).touch()
    wrong = {}
    for where, arguments in commands():
        try:
            parse(shlex.split(arguments), arguments)
        except click.MissingParameter:
            pass  # a sentence may name a command without its arguments
        except click.UsageError as error:
            wrong[where, arguments] = error.message
    assert wrong == {}


def parse(rest, line):
    command: click.Command | None = cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    if command is None:
        raise click.UsageError("no such command")
    command.make_context(line, rest)


def server_of(block, folder):
    """Return the simulated server of a block. Its scripts run in ``folder``."""
    return Server(fleet_named(RUNS.search(block.before)["fleet"] or str(DEFAULT_FLEET)).gpus, folder=folder)


def those_that_run(*, with_tensorflow):
    marked = [(block, RUNS.search(block.before)) for block in BLOCKS]
    return [block for block, mark in marked if mark and bool(mark["tensorflow"]) == with_tensorflow]


@pytest.mark.parametrize("block", those_that_run(with_tensorflow=False), ids=str)
def test_command_prints_the_output_on_the_page(tmp_path, block):
    assert block.kind == "console"
    everything = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with server_of(block, tmp_path) as server:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            (arguments,) = arguments_in(line)
            command = [sys.executable, "-m", "autogpu", *shlex.split(arguments)]
            printed = server.run(command, cwd=tmp_path / "home", **everything).stdout
            assert matches(expected, printed), printed


@pytest.mark.tensorflow
@pytest.mark.parametrize("block", those_that_run(with_tensorflow=True), ids=str)
def test_script_prints_the_messages_on_the_page(tmp_path, forks, block):
    # The block of a notebook has no command line.
    text = block.text if block.text.startswith("$ ") else f"$ python train.py\n{block.text}"
    line, _, expected = text.partition("\n")
    *settings, program, script = line.removeprefix("$ ").split()
    assert (program, script) == ("python", "train.py")
    gib = RUNS.search(block.before)["gib"]
    mib = int(float(gib or 0) * 1024)
    text = f"import tensorflow as tf\ntf.raw_ops.Empty(shape=[{mib}, 1 << 18], dtype=tf.float32)\n"
    with server_of(block, tmp_path) as server:
        train = Runner(environments.tensorflow_with_autogpu(), server, tmp_path / "project", forks)
        for _ in range(RUNS_TO_LEARN if gib else 0):
            train(text)
        environ: dict[str, Any] = dict(setting.split("=") for setting in settings)
        ran = train(text, **environ)
    assert matches(expected, "".join(f"{line}\n" for line in ran.said)), ran.stderr


def matches(expected, printed):
    """True if ``printed`` equals ``expected``; ``...`` matches any text in a line, and alone on a line any lines."""
    pattern = ""
    for line in expected.splitlines():
        pattern += r"(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.slow
def test_pages_show_the_status_of_the_lab(tmp_path):
    shown = [line.plain for line in lines(pictures.status_of_lab(tmp_path), View(120))]
    parts = [block.text for block in BLOCKS if block.before.endswith(STATUS)]
    assert [line for part in parts for line in part.splitlines() if line not in shown] == []
    assert parts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["status", "explain"])
def test_picture_of_the_lab_shows_what_the_command_prints(name, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    assert pictures.main([name]) == 0
    drawn, shown = tmp_path / f"{name}.svg", ROOT / "docs" / "pictures" / f"{name}.svg"
    assert WORDS.findall(drawn.read_text()) == WORDS.findall(shown.read_text())


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason=NO_CHROMIUM)
def test_picture_of_the_web_page_has_the_right_size_and_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    assert pictures.main(["web-page"]) == 0
    for folder in (tmp_path, ROOT / "docs" / "pictures"):
        image = (folder / "web-page.png").read_bytes()
        assert image.startswith(b"\x89PNG")
        assert struct.unpack(">II", image[16:24]) == pictures.WEB_PAGE_SIZE
        assert len(image) < 150_000


def test_security_page_names_each_variable_and_each_finder():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    texts = {value for value in vars(variables).values() if isinstance(value, str)}
    names = {text for text in texts if re.fullmatch("(AUTOGPU|CUDA)(_[A-Z]+)*", text)}
    assert len(names) > 10
    # `variables` lacks the names of other programs. The pattern does not match TYPED, which is only a prefix.
    names |= {FORCE_GROWTH, "PYTHONPATH", f"{variables.TYPED}…"}
    assert {name for name in names if f"`{name}`" not in page} == set()
    finders = [file for file in (ROOT / "autogpu").rglob("*.py") if "sys.meta_path.insert" in file.read_text()]
    assert len(finders) == 2
    assert [file for file in finders if f"`{name_of(file)}`" not in page] == []


def test_tests_named_on_pages_exist():
    files = ROOT.glob("tests/**/test_*.py")
    functions = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    texts = {text for page in PAGES for text in INLINE.findall(page.read_text(encoding="utf-8"))}
    named = {name for text in texts for name in re.findall(r"\btests/\S+\.py|^test_\w+$", text)}
    assert {text for text in named - functions if not (ROOT / text).is_file()} == set()
    assert named
