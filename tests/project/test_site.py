"""What the site does beyond its pages: Chinese as it is written and searched for, and the copy button of a screen."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support import environments
from tests.support.environments import ROOT

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

# A page of the site with one screen, as the script sees it; prints what was copied and what was said.
PAGE = """
const vm = require("vm"), fs = require("fs");
const copied = [], said = [], body = {append(field) { body.field = field; }};
let clicked;
const screen = {textContent: "$ autogpu status\\nGPU 0\\n$ python \\\\\\n  train.py\\n"};
const words = {textContent: JSON.stringify({translations: {"clipboard.copied": "Copied"}})};
const page = {
  navigator: {clipboard: CLIPBOARD},
  window: {"alert$": {next: (text) => said.push(text)}},
  document: {
    body,
    documentElement: {lang: "en"},
    addEventListener: (_, listener) => { clicked = listener; },
    querySelector: () => screen,
    getElementById: () => words,
    createElement: () => ({select() {}, remove() {}}),
    execCommand: () => COMMAND_WORKS && copied.push(body.field.value) > 0,
  },
};
vm.runInNewContext(fs.readFileSync("docs/copy-commands.js", "utf8"), page);
const button = {dataset: {clipboardTarget: "#screen"}};
clicked({target: {closest: () => button}, stopImmediatePropagation() {}, preventDefault() {}});
setTimeout(() => console.log(JSON.stringify([copied, said])), 10);
"""

# The search of the site in the folder of argv[1]: the page's script, and the theme's worker on the index. Prints where
# each of the other words of argv is found.
SEARCH = """
const vm = require("vm"), fs = require("fs");
const [folder, ...queries] = process.argv.slice(1);
const run = (file, context) => vm.runInContext(fs.readFileSync(`${folder}/${file}`, "utf8"), context);
const workers = "assets/javascripts/workers", answers = [];
const worker = {
  console,
  importScripts: (...files) => files.forEach((file) => run(`${workers}/${file}`, worker)),
  addEventListener: (_, listener) => { worker.hear = listener; },
  postMessage: (answer) => answers.push(answer),
};
worker.self = vm.createContext(worker);
run(`${workers}/${fs.readdirSync(`${folder}/${workers}`).find((name) => name.endsWith(".js"))}`, worker);
class Worker { postMessage(message) { return worker.hear({data: message}); } }
run("chinese-search.js", vm.createContext({Worker}));
(async () => {
  const {config, docs} = JSON.parse(fs.readFileSync(`${folder}/search/search_index.json`, "utf8"));
  const page = new Worker();
  await page.postMessage({type: 0, data: {config, docs, options: {}}});
  for (const query of queries) await page.postMessage({type: 2, data: query});
  const found = answers.slice(1).map(({data}) => data.items.flat().map(({location}) => location));
  console.log(JSON.stringify(found));
})();
"""


class Words(HTMLParser):
    """What a page says around its text, in words and to a screen reader."""

    def __init__(self):
        super().__init__()
        self.said, self.around = set(), 0

    def handle_starttag(self, tag, attrs):
        names = {"title", "aria-label", "alt", "placeholder"}
        if ("name", "description") in attrs:
            names.add("content")
        self.said |= {value for name, value in attrs if name in names}
        self.around += tag in ("header", "footer")

    def handle_endtag(self, tag):
        self.around -= tag in ("header", "footer")

    def handle_data(self, data):
        if self.around and self.lasttag != "script":
            self.said.add(" ".join(data.split()))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as ``make site`` builds it."""
    wanted = tuple(toml.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"])
    python = environments.environment(Path(sys.executable).resolve(), wanted, with_autogpu=False)
    folder = tmp_path_factory.mktemp("site")
    command = [str(python), "-B", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    subprocess.run(command, cwd=ROOT, env=environ, timeout=250, check=True)
    return folder


@pytest.mark.slow
def test_a_chinese_page_of_the_site_says_nothing_in_english(site):
    pages, words = sorted((site / "zh-CN").glob("*.html")), Words()
    for page in pages:
        words.feed(page.read_text(encoding="utf-8"))
    assert len(pages) == len(list((ROOT / "docs" / "zh-CN").glob("*.md")))
    in_english = {text for text in words.said if re.search("[A-Za-z]", text) and not re.search("[\u4e00-\u9fff]", text)}
    assert in_english == {"autogpu", "Material for MkDocs"}


@pytest.mark.slow
def test_each_page_of_the_site_has_its_language(site):
    chinese, english = ((site / name / "memory.html").read_text(encoding="utf-8") for name in ("zh-CN", "."))
    assert ('<html lang="zh"' in chinese, '<html lang="en"' in english) == (True, True)
    assert ("永久链接" in chinese, "Permanent link" in english) == (True, True)
    # Of the contents, those of its language.
    assert ("policy.html" in chinese.partition("<article")[0], "zh-CN/sharing.html" in english) == (False, True)
    assert "找不到页面" in (site / "404.html").read_text(encoding="utf-8")


@pytest.mark.slow
@needs_node
def test_chinese_is_found_as_it_is_typed(site):
    wanted = {
        "最空闲": "zh-CN/choosing.html#什么时候选",
        "空闲GPU": "zh-CN/sharing.html#没有空闲的-gpu-时",
        "选择GPU": "zh-CN/choosing.html",
        "指定GPU": "zh-CN/troubleshooting.html#用的不是我指定的那块-gpu",
        "最空闲的GPU": "zh-CN/choosing.html#什么时候选",
        "CUDA_VISIBLE_DEVICES不起作用": "zh-CN/troubleshooting.html#cuda_visible_devices-不起作用",
        "显存不足": "zh-CN/memory.html#任务显存不足时",
        "notebook": "notebooks.html",
    }
    command = ["node", "-e", SEARCH, str(site), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = dict(zip(wanted, json.loads(done.stdout)))
    assert {query: places for query, places in found.items() if wanted[query] not in places} == {}
    script = '<script src="../chinese-search.js"></script>'
    assert script in (site / "zh-CN" / "memory.html").read_text(encoding="utf-8")


@needs_node
@pytest.mark.parametrize(
    ("clipboard", "command_works", "is_copied"),
    [
        ("{writeText: async (text) => copied.push(text)}", False, True),
        ("undefined", True, True),  # a page that came by plain http
        ("undefined", False, False),
        ("{writeText: async () => { throw new Error('NotAllowedError'); }}", True, True),
        ("{writeText: async () => { throw new Error('NotAllowedError'); }}", False, False),
    ],
    ids=["https", "http", "http-refused", "https-refused", "both-refused"],
)
def test_the_copy_button_copies_what_is_typed_and_says_whether_it_did(clipboard, command_works, is_copied):
    program = PAGE.replace("CLIPBOARD", clipboard).replace("COMMAND_WORKS", json.dumps(command_works))
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    typed = "autogpu status\npython \\\n  train.py"
    assert json.loads(done.stdout) == ([[typed], ["Copied"]] if is_copied else [[], ["Not copied"]])
