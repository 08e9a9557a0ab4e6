"""The web page of ``autogpu status``: its text, and in a real browser hostile names and narrow windows."""

import json
import re
import threading
import time
import urllib.parse
from contextlib import contextmanager
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autogpu.devices.model import FailureCause, Inventory, UnreadableDevice
from autogpu.frozen import replace
from autogpu.status.model import Answer, LeaseFolder, RemoteFault, RemoteProblem, UnreadableLease
from autogpu.status.remote import from_json
from autogpu.status.web_page import RELOAD_S, web_page
from autogpu.text import printable
from tests.support.browser import NO_CHROMIUM, browse, chromium
from tests.support.host_states import HOUR_S, NOW_S, holder, host, waiter
from tests.support.values import cut, gpu, inventory

MACHINE = inventory(
    gpu(0, used_gib=6, pids=[7, 99], busy=97, remapping_failed=True, temperature_celsius=71, power_watts=280),
    gpu(1, total_gib=None, used_gib=None, busy=None, name="NVIDIA GB10"),
    gpu(2, used_gib=2, pids=[8]),
    *cut(3, 20, 20),
    unreadable=(UnreadableDevice(4, "GPU is lost"),),
    driver_version="550.54.15",
)
HOLDERS = [holder("a", (0, 24)), holder("b", (2, 12), script="eda.ipynb", pid=8, age_s=26 * HOUR_S)]
LAB = host(MACHINE, HOLDERS, [waiter(1, "w.py"), waiter(2, "v.py", gib=6)])
NOTHING_READ = Inventory(failure="NVML reports: mismatch", failure_cause=FailureCause.DRIVER)


def ssh_failed(said):
    return RemoteProblem(RemoteFault.SSH_FAILED, said)


def lines(page):
    """Return the page's text; each element begins a line, except those within a sentence."""
    text = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    text = re.sub(r"</?(?:b|i|span|time)\b[^>]*>", "", text)
    return [unescape(line) for line in re.split(r"\n|<[^>]*>", text) if line]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("driver 550.54.15, 0 of 5 GPUs free, 3 awaited, 2 jobs waiting", id="host"),
        pytest.param("GPU 0 TITAN RTX busy", id="state"),
        pytest.param("GPU 2 TITAN RTX idle lease", id="idle-lease"),
        pytest.param("6.0 of 24.0 GiB, 24.0 claimed", id="memory"),
        pytest.param("97 %", id="utilization"),
        pytest.param("71 °C, 280 W", id="sensors"),
        pytest.param("not healthy: row remapping failed", id="health"),
        pytest.param("ann train.py (pid 7) uses 3.0 of 24.0 GiB, for 60 s", id="job"),
        pytest.param("ann eda.ipynb (pid 8) uses 2.0 of 12.0 GiB, for 26 h, idle", id="idle-job"),
        pytest.param("bob python (pid 99), uses 3.0 GiB, no claim", id="unmanaged-process"),
        pytest.param("? of ? GiB", id="unknown-memory"),
        pytest.param("unknown", id="unknown-utilization"),
        pytest.param("GPU 3 A100 MIG", id="card-with-instances"),
        pytest.param("GPU 3:1 A100 MIG 4g.20gb awaited", id="instance"),
        pytest.param("not readable: GPU is lost", id="lost-gpu"),
        pytest.param("bob v.py (pid 88): 1 GPU with 6.0 GiB, for 90 s", id="queue"),
    ],
)
def test_page_shows_the_host_its_gpus_its_jobs_and_the_queue(line):
    assert line in lines(web_page([Answer("", LAB)], NOW_S))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            Answer("lab7", None, ssh_failed("no route to host")), "No status: no route to host", id="no-answer"
        ),
        pytest.param(Answer("", host(inventory())), "This host has no GPU.", id="no-gpu"),
        pytest.param(Answer("", host(NOTHING_READ)), "NVML reports: mismatch", id="broken-driver"),
        pytest.param(
            Answer("", host(Inventory(failure="x", failure_cause=FailureCause.NO_DRIVER))),
            "No NVIDIA driver on this host.",
            id="no-driver",
        ),
        pytest.param(
            Answer("", replace(LAB, lease_folder_problem="belongs to uid 7")),
            "Jobs of this user can't claim GPUs: belongs to uid 7",
            id="no-lease-folder",
        ),
    ],
)
def test_page_shows_the_reason_if_something_is_missing(answer, expected):
    assert any(line.startswith(expected) for line in lines(web_page([answer], NOW_S)))


@pytest.mark.parametrize(
    ("hosts", "title"),
    [(["lab1"], "GPUs of lab1"), (["lab1", "lab2"], "GPUs of 2 hosts"), ([""], "GPUs of lab")],
    ids=["one", "several", "this-host"],
)
def test_title_names_a_single_host_or_counts_several(hosts, title):
    page = web_page([Answer(name, LAB) for name in hosts], NOW_S)
    assert f"<title>{title}</title>" in page
    assert f"<h1>{title}</h1>" in page


def test_page_shows_the_time_with_its_zone_and_reloads_itself(monkeypatch):
    monkeypatch.setenv("TZ", "XYZ-5:30")
    time.tzset()
    try:
        page = web_page([Answer("", LAB)], NOW_S)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert '<time datetime="1970-01-12T19:16:40+0530">Mon 12 Jan 1970 19:16:40 XYZ</time>' in page
    assert f'<meta http-equiv="refresh" content="{RELOAD_S}">' in page


def test_bar_of_a_gpu_with_more_claims_than_memory_is_full_and_no_wider():
    lab = host(inventory(gpu(0, used_gib=6, pids=[7])), [holder("a", (0, 24)), holder("b", (0, 24), pid=8)])
    styles = re.findall(r'<i class="(\w+)" style="width: (.*?)"', web_page([Answer("", lab)], NOW_S))
    assert styles == [("used", "25.0%"), ("claimed", "100.0%")]


def test_page_stays_short_on_a_gpu_with_many_processes():
    crowd = host(inventory(gpu(0, used_gib=20, pids=range(100, 300))))
    assert "and 192 more processes not managed by autogpu, 19.2 GiB" in lines(web_page([Answer("", crowd)], NOW_S))


def with_every_text(status, text):
    """Return ``status`` with ``text`` in place of every string, as a hostile host could send it."""

    def changed(value):
        if isinstance(value, dict):
            return {key: changed(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [changed(each) for each in value]
        return text if isinstance(value, str) else value

    return from_json(changed(status.to_json()))


FAULTY = replace(
    LAB,
    failure="x",
    engine="x",
    lease_folder=LeaseFolder("x", "x", "x", 0),
    lease_folder_problem="x",
    unreadable_leases=(UnreadableLease("x", "x", "x"),),
)
HOSTILE = {
    "script": "<script>document.title='owned'</script>",
    "image": "<img src=/stolen onerror=document.title='owned'>",
    "end-of-title": "</title></style></script><h2>owned</h2>",
    "quotes": "\" onload=\"document.title='owned'\" x='",
    "entity": "&lt;b&gt; &amp;",
    "control": "\x1b[2J\x00\r\nx\u202egpj.exe\u2066",
    "long": "A" * 10_000,
    "unicode": "训练.py",
}


def hostile_answers():
    for name in HOSTILE.values():
        yield Answer(name, with_every_text(FAULTY, name))
        yield Answer(name, None, ssh_failed(name))


def test_only_an_unhealthy_or_unreadable_gpu_has_a_warning():
    warnings = re.findall('<p class="bad">(.*)', web_page([Answer("", LAB)], NOW_S))
    assert warnings == ["not healthy: row remapping failed", "not readable: GPU is lost"]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_name_is_escaped_and_shortened(name):
    page = web_page([Answer(name, with_every_text(FAULTY, name)), Answer("lab", None, ssh_failed(name))], NOW_S)
    assert f'<p class="bad">{escape(printable(f"No status: {printable(name, 400)}", 2400))}\n' in page
    host_name, user, script = (escape(printable(name, longest)) for longest in (64, 32, 40))
    assert f"<h2>{host_name}</h2>" in page
    assert f"<b>{user}</b> {script} (pid 7)" in page
    assert [c for c in page if not c.isprintable() and c != "\n"] == []
    assert len(page) < 40_000
    page.encode("utf-8")


# The script measures each page in a frame, because a window can't be as narrow as a telephone. It then replaces the
# document's body by the result.
MEASURES = """\
<script>
onload = () => {
  const facts = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, root = page.documentElement
    const all = [...page.querySelectorAll('*')]
    const texts = what => [...page.querySelectorAll(what)].map(each => each.textContent)
    return {page: frame.getAttribute('src').slice(1), width: frame.clientWidth, title: page.title,
      beyond: root.scrollWidth - root.clientWidth, hosts: texts('h2'), users: texts('.on b'), age: texts('#age')[0],
      elements: [...new Set(all.map(each => each.localName))], scripts: texts('script').length,
      attributes: [...new Set(all.flatMap(each => each.getAttributeNames()))],
      background: getComputedStyle(page.body).backgroundColor}
  })
  document.body.textContent = encodeURIComponent(JSON.stringify(facts))
}
</script>
"""
WIDTHS = (360, 1600)


@contextmanager
def served(pages):
    """Serve ``pages`` on this host; return the address and the list of the paths that were requested."""
    requested = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path[1:])
            text = pages.get(self.path[1:])
            self.send_response(200 if text else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((text or "").encode("utf-8"))

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()


def with_a_script_of_others(page, address):
    """Return ``page`` as if a name had been inserted without escaping."""
    return page.replace("</main>", f"{HOSTILE['script']}{HOSTILE['image'].replace('/stolen', address)}</main>")


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(request, tmp_path_factory):
    """Return the color scheme, a browser's measurements of each page at each width, and the requested paths."""
    if not chromium():
        pytest.skip(NO_CHROMIUM)
    pages = {}
    with served(pages) as (address, requested):
        now_s = time.time()
        plain = web_page(
            [Answer("lab1", LAB), Answer("lab2", None, RemoteProblem(RemoteFault.NO_ANSWER, number=10.0))], now_s
        )
        pages["lab"] = plain
        pages["old"] = web_page([Answer("", LAB)], now_s - 3 * HOUR_S)
        pages["hostile"] = web_page([*hostile_answers()], now_s)
        pages.update({name: web_page([Answer(text, None, ssh_failed(text))], now_s) for name, text in HOSTILE.items()})
        pages["injected"] = with_a_script_of_others(plain, f"{address}/stolen")
        of_pages = [*pages]
        frames = [f'<iframe src="/{name}" style="width: {width}px"></iframe>' for name in pages for width in WIDTHS]
        pages["measures"] = MEASURES + "".join(frames)
        folder = tmp_path_factory.mktemp("browser")
        dom = browse(f"{address}/measures", folder, "--dump-dom", is_dark=request.param == "dark")
    body = re.search(r"<body>(.*)</body>", dom, re.DOTALL)[1].strip()
    facts = {(each["page"], each["width"]): each for each in json.loads(urllib.parse.unquote(body))}
    assert {*facts} == {(name, width) for name in of_pages for width in WIDTHS}
    return request.param, facts, requested


def in_a_browser(test):
    return pytest.mark.slow(pytest.mark.xdist_group("browser")(test))


@in_a_browser
def test_hostile_names_are_text_in_the_browsers_document(shown):
    _, facts, _ = shown
    ordinary, hostile = facts["lab", 1600], facts["hostile", 1600]
    assert hostile["hosts"] == [printable(name, 64) for name in HOSTILE.values() for _ in range(2)]
    assert {*hostile["users"]} == {printable(name, 32) for name in HOSTILE.values()}
    assert (hostile["scripts"], hostile["title"]) == (1, f"GPUs of {2 * len(HOSTILE)} hosts")
    for name, text in HOSTILE.items():
        assert facts[name, 360]["title"] == f"GPUs of {printable(text, 64)}"
    for each in facts.values():
        if each["page"] != "injected":
            assert {*each["elements"]} <= {*ordinary["elements"], "p"}
            assert {*each["attributes"]} <= {*ordinary["attributes"]}


@in_a_browser
def test_page_loads_nothing_and_runs_no_script_of_others(shown):
    _, facts, requested = shown
    asked_for = {page for page, _ in facts} | {"measures"}
    assert {*requested} - {"favicon.ico"} == asked_for
    # The Content-Security-Policy blocks the script and the image even if escaping fails.
    assert {"script", "img"} <= {*facts["injected", 360]["elements"]}
    assert facts["injected", 360]["title"] == "GPUs of 2 hosts"


@in_a_browser
def test_page_fits_a_telephone_and_a_wide_screen_in_light_and_dark(shown):
    scheme, facts, _ = shown
    assert {key: each["beyond"] for key, each in facts.items() if each["beyond"] > 0} == {}
    backgrounds = {each["background"] for each in facts.values()}
    assert backgrounds == {"rgb(20, 23, 27)" if scheme == "dark" else "rgb(244, 245, 247)"}


@in_a_browser
def test_page_that_is_no_longer_written_shows_a_warning(shown):
    _, facts, _ = shown
    assert facts["lab", 360]["age"] == ""
    assert (
        facts["old", 360]["age"]
        == ", 3 h ago by this computer's clock: outdated; check the timer that writes this page"
    )
