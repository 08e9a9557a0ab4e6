"""The documents: links lead somewhere, policies can be read, commands exist, and printed output is what is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import click
import pytest

from autogpu.cli.main import cli
from autogpu.cli.status_screen import lines
from autogpu.cli.status_table import Frame
from autogpu.policy import problems_of
from demo import pictures
from tests.gpusim import Server
from tests.gpusim.__main__ import DEFAULT_FLEET, fleet_named
from tests.support import environments

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
# Where a command begins: at the start, behind variables, inside $( ), behind sudo and behind another program's `--`.
COMMAND = re.compile(r"(?:^|\$\(|sudo |-- |&& )(?:\w+=\S+ )*autogpu(?![\w./-])([^)]*)")
# What a block was printed by: on the server of `lab.toml`, or on one that ships by that name.
RUNS = re.compile(r"<!-- runs(?P<tensorflow> with TensorFlow)?(?: on (?P<fleet>[\w-]+))? -->\n\Z")
MARK = re.compile(r"<!--.*?-->\n")
STATUS = "<!-- status of make lab -->\n"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``line`` is that of its fence, ``before`` the page up to there."""

    page: Path
    line: int
    kind: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            before = text[: found.start()]
            yield Block(page, before.count("\n") + 1, found["kind"], found["text"], before)


BLOCKS = list(blocks())


def commands() -> Iterator[tuple[str, str]]:
    """Each ``autogpu ...`` in a block for a shell, and in a sentence, as ``(place, arguments)``."""
    for block in BLOCKS:
        for line in block.text.splitlines() if block.kind in ("console", "sh") else ():
            if block.kind == "sh" or line.startswith("$ "):
                yield from ((str(block), arguments) for arguments in arguments_in(line.removeprefix("$ ")))
    for page in PAGES:
        for span in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            yield from ((name_of(page), arguments) for arguments in arguments_in(span))


def arguments_in(line: str) -> list[str]:
    line = re.sub(r"\$\((?:command -v|which) autogpu\)", "autogpu", line)
    # Up to a comment, a pipe, a file or the next command.
    return [found.partition(" && ")[0].strip() for found in COMMAND.findall(re.split(r"\s+[#|>&](?!&)", line)[0])]


def slugs(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_somewhere(page):
    text = INLINE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    dead = []
    for target in LINK.findall(text):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in slugs(file)):
            dead.append(target)
    assert not dead


def test_every_page_is_in_the_site_and_can_be_found_from_its_first():
    site, first = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs" / "index.md").read_text()
    names = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS if page.name != "index.md"]
    assert [name for name in names if f": {name}\n" not in site] == []
    assert [name for name in names if f"({name})" not in first] == []


@pytest.mark.parametrize("chinese", ENGLISH_OF, ids=name_of)
def test_a_page_says_the_same_in_both_languages(chinese):
    assert contents(chinese) == contents(ENGLISH_OF[chinese])


def contents(page: Path) -> dict[str, object]:
    """What a page has in common with its translation."""
    whole = MARK.sub("", page.read_text(encoding="utf-8"))
    text = FENCE.sub("", whole)
    code = [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]  # a long one goes over two lines
    prose = LINK.sub("]", re.sub(r"`[^`]+`", "", text))
    return {
        "headings": re.findall(r"^#+(?= )", text, re.MULTILINE),
        # Only comments are translated. A screen is run where it stands in English, so no mark is needed here.
        "blocks": [(found["kind"], COMMENT.sub("", found["text"])) for found in FENCE.finditer(whole)],
        "code": set(code),
        "numbers": set(re.findall(r"\d+(?:\.\d+)*", prose)),
        "rows of tables": [found.count("\n") for found in TABLE.findall(text)],
        "links": {place(page, target) for target in LINK.findall(text)},
    }


def place(page: Path, target: str) -> tuple[str, int | None]:
    """Where a link leads, alike in both languages: the page in English, and which of its headings."""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    return name_of(ENGLISH_OF.get(file, file)), slugs(file).index(anchor) if anchor else None


@pytest.mark.parametrize("chinese", ENGLISH_OF, ids=name_of)
def test_a_chinese_page_leads_to_chinese_pages(chinese):
    translated = set(ENGLISH_OF.values()) - {ENGLISH_OF[chinese]}  # its own original is linked in its head
    links = LINK.findall(FENCE.sub("", chinese.read_text(encoding="utf-8")))
    assert [link for link in links if (chinese.parent / link.partition("#")[0]).resolve() in translated] == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "toml"], ids=str)
def test_a_policy_can_be_read(tmp_path, block):
    file = tmp_path / "autogpu.toml"
    file.write_text(block.text, encoding="utf-8")
    is_system = "locked" in block.text or "[limits]" in block.text
    assert problems_of(file, os.environ, is_system=is_system) == ()


@pytest.mark.parametrize(("place", "arguments"), sorted(set(commands())))
def test_a_command_exists(tmp_path, monkeypatch, place, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "autogpu.toml").touch()
    rest, command = shlex.split(arguments), cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        inner = command.get_command(click.Context(command), rest[0])
        assert inner is not None, f"{place}: autogpu {arguments}"
        command, rest = inner, rest[1:]
    try:
        command.make_context(arguments, rest)
    except click.MissingParameter:
        pass  # a verb that a sentence names, without what it works on


@pytest.fixture
def lab(tmp_path):
    """A server, and a folder of scripts that is the working directory there."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import tensorflow as tf\ntf.constant(1) + 1\n")
    (tmp_path / "server").mkdir()

    def run(block, command, **environ):
        gpus = fleet_named(RUNS.search(block.before)["fleet"] or str(DEFAULT_FLEET)).gpus
        with Server(gpus, folder=tmp_path / "server") as server:
            everything = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return server.run(command, cwd=project, environ=environ, **everything).stdout

    return run


def those_that_run(*, with_tensorflow):
    marked = [(block, RUNS.search(block.before)) for block in BLOCKS]
    return [block for block, mark in marked if mark and bool(mark["tensorflow"]) == with_tensorflow]


@pytest.mark.parametrize("block", those_that_run(with_tensorflow=False), ids=str)
def test_a_command_prints_what_stands_there(lab, block):
    assert block.kind == "console"
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        (arguments,) = arguments_in(line)
        printed = lab(block, [sys.executable, "-m", "autogpu", *shlex.split(arguments)])
        assert matches(expected, printed), printed


@pytest.mark.tensorflow
@pytest.mark.parametrize("block", those_that_run(with_tensorflow=True), ids=str)
def test_a_script_says_what_stands_there(lab, block):
    # A notebook has no command.
    text = block.text if block.text.startswith("$ ") else f"$ python train.py\n{block.text}"
    line, _, expected = text.partition("\n")
    *settings, program, script = line.removeprefix("$ ").split()
    assert (program, script) == ("python", "train.py")
    python = environments.tensorflow_with_autogpu()
    printed = lab(block, [str(python), script], **dict(setting.split("=") for setting in settings))
    said = "".join(f"{each}\n" for each in printed.splitlines() if each.startswith("autogpu: "))
    assert matches(expected, said), printed


def matches(expected: str, printed: str) -> bool:
    """``...`` stands for anything within a line; alone on its line for any lines."""
    pattern = ""
    for line in expected.splitlines():
        pattern += r"(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    return re.fullmatch(pattern, printed) is not None


def test_the_line_of_the_readme_is_one_that_is_printed():
    assert ROOT / "README.md" in [block.page for block in those_that_run(with_tensorflow=True)]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.before.endswith(STATUS)], ids=str)
def test_a_part_of_a_status_is_what_is_shown(tmp_path, block):
    shown = [line.plain for line in lines(pictures.status_of_lab(tmp_path), Frame(120, True))]
    assert [line for line in block.text.splitlines() if line not in shown] == []


@pytest.mark.parametrize("name", ["status", "explain"])
def test_a_picture_shows_what_is_printed(tmp_path, monkeypatch, name):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    assert pictures.main([name]) == 0
    assert (tmp_path / f"{name}.svg").read_text() == (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()


def test_the_tests_that_a_page_names_are_there():
    functions = {
        name
        for file in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    named = 0
    for page in PAGES:
        for text in INLINE.findall(page.read_text()):
            if re.fullmatch(r"tests/\S+\.py", text):
                assert (ROOT / text).is_file(), f"{page.name}: {text}"
                named += 1
            elif re.fullmatch(r"test_\w+", text):
                assert text in functions, f"{page.name}: {text}"
                named += 1
    assert named > 10
