"""HTML page with the status of several hosts; it loads nothing from elsewhere. This module does no I/O."""

from __future__ import annotations

import base64
import hashlib
import time
from html import escape
from typing import Iterator, Sequence

from autogpu.reporting import hosts
from autogpu.reporting.remote import remote_problem
from autogpu.status.model import TAKEABLE, Answer, GpuStatus, HostStatus
from autogpu.text import counted, printable

RELOAD_S = 30

# The browser reloads the page even if nothing updates its file any more. So this script compares the time of the
# reading with the browser's clock, and shows the age of an old reading.
_SCRIPT = """\
const read = document.querySelector('time'), age = document.getElementById('age')
function show() {
  const minutes = Math.floor((Date.now() - Date.parse(read.dateTime)) / 60000)
  if (minutes < 2) return
  const ago = minutes < 120 ? minutes + ' min' : Math.floor(minutes / 60) + ' h'
  const advice = minutes < 5 ? '' : ': outdated; check the timer that writes this page'
  age.textContent = ', ' + ago + " ago by this computer's clock" + advice
  age.className = minutes < 5 ? '' : 'bad'
}
show(); setInterval(show, 5000)"""

_STYLE = """\
:root { color-scheme: light dark; --page: #f4f5f7; --card: #fff; --ink: #1c2127; --quiet: #59636e; --line: #dfe2e6;
  --used: #33669a; --claimed: #a8c4e0; --free: #1a7f37; --waited: #8250df; --bad: #c0262d }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2126; --ink: #e4e7eb; --quiet: #9aa4af;
  --line: #31373f; --used: #5d9bd5; --claimed: #35506c; --free: #57c26f; --waited: #b69af2; --bad: #ff8078 } }
* { box-sizing: border-box; margin: 0; padding: 0 }
body { padding: 12px 14px 32px; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
h1 { font-size: 20px } h2 { font-size: 17px } h3 { display: flex; gap: 8px; font-size: 14px } ul { list-style: none }
header, .host { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 16px }
section, footer { margin-top: 20px } .queue { margin-top: 10px } .queue ol { padding-left: 24px }
.quiet, dt { color: var(--quiet) } .bad { color: var(--bad); font-weight: 600 }
dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 10px; margin-top: 3px }
.gpus { display: grid; gap: 8px; margin-top: 8px; font-size: 13px;
  grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)) }
.gpus > li { padding: 7px 10px; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  border-left: 4px solid var(--state, var(--quiet)) }
.free { --state: var(--free) } .awaited, .idle_lease { --state: var(--waited) } .lost { --state: var(--bad) }
h3 span { font-weight: 400; color: var(--quiet) } h3 b { margin-left: auto; color: var(--state); white-space: nowrap }
.bar { display: flex; height: 6px; margin: 1px 0 3px; border-radius: 3px; overflow: hidden; background: var(--line) }
.bar i { flex: none; min-width: 2px; background: var(--used) } .bar .claimed { background: var(--claimed) }
.on { border-top: 1px solid var(--line); margin-top: 6px; padding-top: 4px } .idle { color: var(--waited) }
"""


def web_page(answers: Sequence[Answer], asked_s: float) -> str:
    """Return the page, which the browser reloads every :data:`RELOAD_S` seconds.

    Args:
        asked_s: Time at which the hosts were asked. The readings are at most some seconds newer.
    """
    # The browser runs the script only if the Content-Security-Policy contains the hash of the script's exact text.
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    names = [printable(answer.host or (answer.status.host if answer.status else ""), 64) for answer in answers]
    title = _text(f"GPUs of {names[0] if len(names) == 1 else counted(len(names), 'host')}")
    asked = time.localtime(asked_s)
    stamp, words = (time.strftime(form, asked) for form in ("%Y-%m-%dT%H:%M:%S%z", "%a %d %b %Y %H:%M:%S %Z"))
    terms = "".join(f"<dt>{_text(word)}<dd>{_text(meaning)}" for word, meaning in hosts.TERMS.items())
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return f"""\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; form-action 'none'">
<meta http-equiv="refresh" content="{RELOAD_S}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex"><title>{title}</title>
<style>{_STYLE}</style>
<header><h1>{title}</h1>
<p>Read <time datetime="{stamp}">{_text(words)}</time><span id="age"></span>
<p class="quiet">This page reloads every {RELOAD_S} s.</header>
<main>
{"".join(line for name, answer in zip(names, answers) for line in _section(name, answer))}</main>
<footer><details><summary>Terms</summary><dl>{terms}</dl></details></footer><script>{_SCRIPT}</script>
"""


def _text(words: str) -> str:
    return escape(printable(words, 2400))


def _section(name: str, answer: Answer) -> Iterator[str]:
    status = answer.status
    about = _text(", ".join(hosts.about_host(status))) if status else ""
    yield f'<section>\n<div class="host"><h2>{_text(name)}</h2><p>{about}</div>\n'
    yield from (f'<p class="bad">{_text(problem)}\n' for problem in _problems(answer))
    if status and (status.gpus or status.unreadable):
        yield '<ul class="gpus" role="list">\n'
        yield from map(_gpu, status.gpus)
        for lost in status.unreadable:
            yield f'<li class="lost"><h3>GPU {lost.index}</h3><p class="bad">{_text(hosts.lost_gpu(lost))}\n'
        yield "</ul>\n"
    if status and status.queue:
        waiters = "".join(f"<li>{_text(hosts.waiter_words(each, status.gpus))}\n" for each in status.queue)
        yield f'<div class="queue"><h3>{hosts.QUEUE_HEADING}</h3><ol>\n{waiters}</ol></div>\n'
    yield "</section>\n"


def _problems(answer: Answer) -> Iterator[str]:
    if answer.problem:
        yield f"No status: {remote_problem(answer.problem)}"
    if answer.status:
        yield from _problems_of_host(answer.status)


def _problems_of_host(status: HostStatus) -> Iterator[str]:
    if status.failure:
        yield hosts.driver_failure(status)
    elif not status.gpus and not status.unreadable:
        yield "This host has no GPU."
    yield from hosts.claim_problems(status)


def _gpu(gpu: GpuStatus) -> str:
    # Another host may send any text as a state.
    kind = gpu.state if gpu.state in TAKEABLE else "other"
    busy = gpu.utilization_percent
    rows = {
        "memory": hosts.memory_words(gpu) + _bar(hosts.bar_shares(gpu) or ()),
        "utilization": "unknown" if busy is None else f"{busy} %{_bar((busy / 100,))}",
        "sensors": hosts.sensor_words(gpu),
    }
    lines = "".join(f"<dt>{label}<dd>{content}\n" for label, content in rows.items() if content)
    health = f'<p class="bad">{_text(hosts.health_words(gpu))}\n' if gpu.health_problems else ""
    on = "".join(map(_occupant, hosts.occupants(gpu, most_jobs=8, most_processes=8)))
    heading = f"GPU {gpu.label} <span>{_text(hosts.short_name(gpu))}</span> <b>{_text(hosts.state_words(gpu))}</b>"
    return (
        f'<li class="{kind}"><h3>{heading}</h3><dl>{lines}</dl>{health}{on and f"<ul class=on role=list>{on}</ul>"}\n'
    )


def _bar(shares: Sequence[float]) -> str:
    # Screen readers skip the bar, because the text before it has the same numbers.
    kinds = zip(("used", "claimed"), shares)
    parts = (f'<i class="{kind}" style="width: {min(share, 1):.1%}"></i>' for kind, share in kinds if share > 0.001)
    return f'<div class="bar" aria-hidden="true">{"".join(parts)}</div>'


def _occupant(each: hosts.Occupant) -> str:
    user = f"<b>{_text(each.user)}</b> " if each.user else ""
    activity = f'<span class="{"idle" if each.is_idle_lease else ""}">{each.activity}</span>' if each.activity else ""
    return f"<li>{user}{_text(each.words)}{activity and ', '}{activity}\n"
