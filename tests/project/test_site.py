"""What the site does beyond its pages: Chinese as it is written, and the copy button of a screen with commands."""

from __future__ import annotations

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from tests.support.environments import ROOT
from tests.support.modules import module_of

CHINESE, ENGLISH = (SimpleNamespace(file=SimpleNamespace(src_uri=uri)) for uri in ("zh-CN/memory.md", "memory.md"))

# A page of the site with one screen, as the script sees it; prints what was copied and what was said.
PAGE = """
const vm = require("vm"), fs = require("fs");
const copied = [], said = [], body = {append(field) { body.field = field; }};
let clicked;
const screen = {textContent: "$ autogpu status\\nGPU 0\\n$ python \\\\\\n  train.py\\n"};
const words = {textContent: JSON.stringify({translations: {"clipboard.copied": "Copied"}})};
const page = {
  navigator: HAS_CLIPBOARD ? {clipboard: {writeText: async (text) => copied.push(text)}} : {},
  window: {"alert$": {next: (text) => said.push(text)}},
  document: {
    body,
    addEventListener: (_, listener) => { clicked = listener; },
    querySelector: () => screen,
    getElementById: () => words,
    createElement: () => ({select() {}, remove() {}}),
    execCommand: () => copied.push(body.field.value),
  },
};
vm.runInNewContext(fs.readFileSync("docs/copy-commands.js", "utf8"), page);
const button = {dataset: {clipboardTarget: "#screen"}};
clicked({target: {closest: () => button}, stopImmediatePropagation() {}, preventDefault() {}});
setTimeout(() => console.log(JSON.stringify([copied, said])), 10);
"""


@pytest.fixture(scope="module")
def chinese():
    return module_of(ROOT / "docs" / "chinese.py")


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>第一行、\n第二行。</p>", "<p>第一行、第二行。</p>"),
        ("<p>是<strong>粗体</strong>\n<a>链接</a></p>", "<p>是<strong>粗体</strong><a>链接</a></p>"),
        ("<p>用\nTensorFlow\n时</p>", "<p>用\nTensorFlow\n时</p>"),
        ("<pre><code># 一\n二</code></pre>", "<pre><code># 一\n二</code></pre>"),
    ],
    ids=["sentence", "inline", "latin", "screen"],
)
def test_a_line_break_is_no_space_between_chinese_characters(chinese, html, shown):
    assert chinese.on_page_content(html, page=CHINESE) == shown
    assert chinese.on_page_content(html, page=ENGLISH) == html


@pytest.mark.parametrize(
    ("page", "language", "items"), [(CHINESE, "zh", ["显存策略"]), (ENGLISH, "en", ["Memory", "中文"])]
)
def test_a_page_has_the_words_and_the_contents_of_its_language(chinese, page, language, items):
    section = SimpleNamespace(title="中文", children=[SimpleNamespace(title="显存策略")])
    nav = SimpleNamespace(items=[SimpleNamespace(title="Memory"), section], homepage="home")
    config = SimpleNamespace(theme={})
    found = chinese.on_page_context({"kept": 1}, page=page, config=config, nav=nav)
    assert config.theme["language"] == language
    assert ([item.title for item in found["nav"].items], found["nav"].homepage, found["kept"]) == (items, "home", 1)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.parametrize("has_clipboard", [True, False], ids=["https", "http"])
def test_the_copy_button_copies_what_is_typed_and_says_so(has_clipboard):
    program = PAGE.replace("HAS_CLIPBOARD", json.dumps(has_clipboard))
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert json.loads(done.stdout) == [["autogpu status\npython \\\n  train.py"], ["Copied"]]
