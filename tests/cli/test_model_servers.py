"""The commands of docs/agents-and-model-servers.md, as the page prints them, run with stand-ins for the servers."""

import json
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import autogpu, holders, running
from tests.gpusim import Gpu, Server
from tests.support.holders import let_age, other_job
from tests.support.simulator_client import CUDA, GIB

PAGE = Path(__file__).parents[2].joinpath("docs", "agents-and-model-servers.md").read_text(encoding="utf-8")
HOLDS, ASKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SERVICE = re.search("^ExecStart=/opt/autogpu/bin/(.*)$", PAGE, re.MULTILINE)[1].replace("/usr/local/bin/", "")
OF_TWO = re.search(r"`(autogpu [^`]* --tensor-parallel-size 2)`", PAGE)[1]
ONE_STEP = re.search("`(autogpu [^`]* --wait 0 -- ./my-program)`", PAGE)[1]
AGENTS = re.search("^```markdown\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]

GPUS = (Gpu(), Gpu())
# A server that allocates 1 GiB on each visible GPU, in one process per GPU as vLLM does, and runs until SIGTERM.
STAND_IN = f"""#!{sys.executable}
{CUDA}
import signal
seen, number, children, (reader, writer) = len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")), 0, [], os.pipe()
for each in range(1, seen):
    children.append(os.fork())
    if not children[-1]:
        number = each
        break
assert (call("cuInit", 0), count(), context(number), allocate(1 << 30)[0]) == (0, seen, 0, 0)
if number:
    os.write(writer, b".")
else:
    signal.signal(signal.SIGTERM, lambda *_: [*(os.kill(each, 9) for each in children), os._exit(0)])
    [os.read(reader, 1) for _ in children]
    say(seen, sys.argv[1:])
signal.pause()
"""


@pytest.fixture
def shell(server, tmp_path):
    """Return the variables of a shell that finds autogpu and the stand-ins for the servers on PATH."""
    (tmp_path / "bin").mkdir()
    for name in ("llama-server", "ollama", "vllm", "my-program"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
    (tmp_path / "bin" / "autogpu").write_text(f'#!/bin/sh\nexec {sys.executable} -m autogpu "$@"\n')
    for file in (tmp_path / "bin").iterdir():
        file.chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def typed(on, shell, text, **environ):
    return on.run(["bash", "-c", text], environ={**shell, **environ})


def jobs(server):
    """Return a dictionary for each GPU: the claims in GiB, keyed by script."""
    shown = json.loads(autogpu(server, "status", "--json").stdout)
    return [{job["script"]: job["claim_bytes"] // GIB for job in gpu["jobs"]} for gpu in shown["gpus"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "claims"),
    [
        (HOLDS.splitlines()[0], [{}, {"llama-server": 12}]),
        (HOLDS.splitlines()[1], [{}, {"ollama": 12}]),
        (HOLDS.splitlines()[2], [{}, {"vllm": 11}]),
        (SERVICE, [{}, {"llama-server": 12}]),
        (OF_TWO, [{"vllm": 24}, {"vllm": 24}]),
    ],
    ids=["llama-server", "ollama", "vllm", "service", "two-gpus"],
)
def test_model_server_holds_its_need_until_it_ends(server, shell, lease_folder, line, claims):
    pipes = dict.fromkeys(("stdout", "stderr"), -1)
    held = server.popen(["bash", "-c", f"exec {line}"], environ=shell, **pipes)
    seen, arguments = json.loads(held.stdout.readline())
    assert (seen, arguments) == (sum(map(len, claims)), line.split(" -- ")[1].split()[1:])
    assert jobs(server) == claims
    used = [server.used_bytes(number) // GIB for number in (0, 1)]
    assert used == [len(each) for each in claims]
    held.terminate()
    assert (held.wait(60), holders(lease_folder)) == (0, [])


@pytest.mark.slow
def test_exit_status_of_pick_shows_if_the_need_fits(server, shell, environ, tmp_path):
    yes = typed(server, shell, ASKS)
    assert yes.stdout == f"yes, on {server.gpus[1].uuid}\n"
    with ExitStack() as others:
        for gpu in server.gpus:
            others.enter_context(other_job(environ, {gpu.uuid: 20 * GIB}))
        assert typed(server, shell, ASKS).stdout == "not now\n"
        assert typed(server, shell, ASKS, AUTOGPU_WAIT="0").stdout == "not now\n"
        listed = {"CUDA_VISIBLE_DEVICES": server.gpus[1].uuid}
        assert typed(server, shell, ASKS, **listed).stdout == "not now\n"
        shared = autogpu(server, "pick", "--need", "6GiB", "--busy", "share", **listed)
        assert (shared.returncode, "(not reserved): " in shared.stderr) == (0, True)
        one_step = typed(server, shell, ONE_STEP.replace("./", ""))
        assert (one_step.returncode, one_step.stdout) == (75, "")
    (tmp_path / "small").mkdir()
    with Server([Gpu(memory="4GiB")], folder=tmp_path / "small") as small:
        assert typed(small, shell, ASKS).stdout == "no\n"


@pytest.mark.slow
def test_idle_model_server_keeps_its_used_memory_but_not_its_need(server, lease_folder):
    held = running(server, "--hold", "--need", "12GiB", "--devices", "1", "--", "sh", "-c", "echo started; read end")
    assert held.stdout.readline() == "started\n"
    ask = ("pick", "--devices", "1", "--need", "20GiB", "--busy", "error", "--format", "index")
    assert autogpu(server, *ask).returncode == 1
    let_age(lease_folder, 3600)
    assert autogpu(server, *ask).stdout == "1\n"
    server.change(1, processes={5004242: "8GiB"})
    assert autogpu(server, *ask).returncode == 1
    held.communicate("\n", timeout=60)


@pytest.mark.slow
def test_commands_and_messages_in_the_text_for_agents_are_correct(server, shell, environ):
    for command in re.findall("`autogpu (run|pick|status)([^`]*)`", AGENTS):
        assert autogpu(server, command[0], "--help").returncode == 0, command
    with ExitStack() as others:
        for gpu in server.gpus:
            others.enter_context(other_job(environ, {gpu.uuid: 20 * GIB}, script="bert.py"))
        hold = re.search("`(autogpu run [^`]*)COMMAND`", AGENTS)[1].replace(" -- ", " --wait 0 -- true")
        waited = typed(server, shell, hold)
        (said,) = re.findall("`(autogpu: waiting [^`]*)`", AGENTS)
        assert (waited.returncode, waited.stderr.startswith(said)) == (75, True), waited.stderr
        (asks,) = re.findall("`(autogpu pick [^`]*)`", AGENTS)
        assert typed(server, shell, asks).returncode == 75
        shown = json.loads(autogpu(server, "status", "--json").stdout)
    assert typed(server, shell, asks).returncode == 0
    (job,) = shown["gpus"][0]["jobs"]
    assert {"user", "pid", "script"} <= job.keys()
    assert (job["script"], shown["queue"]) == ("bert.py", [])
