"""Installs and uninstalls that are killed, run at the same time or can't write: the next one succeeds."""

import json
import signal
import subprocess

import pytest

from tests.install.test_install import installed, tree
from tests.support import environments

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.xdist_group("interrupted")]

# Each input line starts verbs at the same time, each in a forked process that has already imported autogpu. A process
# kills itself just before its change with the given number, or can write no file larger than `most_bytes`.
VERBS = """
import json, os, resource, signal, sys
from autogpu.cli import install, main

def run(verb, folder, number, most_bytes):
    seen = 0
    def on_event(event, arguments):
        nonlocal seen
        is_change = event in ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link")
        is_change = is_change or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
        if is_change and any(folder in str(argument) for argument in arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.addaudithook(on_event)
    status = main.run([verb])
    print(seen, flush=True)
    return status

for line in sys.stdin:
    asked = json.loads(line)
    started = []
    for verb in asked.pop("verbs"):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os._exit(run(verb, **asked))
        os.close(writer)
        started.append((pid, reader))
    answer = []
    for pid, reader in started:
        with open(reader) as stream:
            said = stream.read()
        status = os.waitpid(pid, 0)[1]
        answer.append((-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), said))
    print(json.dumps(answer), flush=True)
"""


EARLIER = "# autogpu start-up file, of an earlier version\n"


class Verbs:
    """Runs verbs of autogpu in an environment.

    Attributes:
        packages: The environment's site-packages.
    """

    def __init__(self, python):
        self.packages = environments.site_packages(python)
        # -B: Python writes no .pyc files, which would appear as differences between the trees.
        self._python = str(python)
        command = [self._python, "-B", "-c", VERBS]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def at_once(self, *verbs, number=0, most_bytes=None):
        """Return the exit status (negative: a signal) and the output of each verb."""
        asked = {"verbs": verbs, "folder": str(self.packages), "number": number, "most_bytes": most_bytes}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, verb, **options):
        ((status, said),) = self.at_once(verb, **options)
        return status, said

    def succeed(self, *verbs):
        for status, said in self.at_once(*verbs):
            assert status == 0, said

    def start(self):
        """Check that a new Python of the environment starts without output."""
        command = [self._python, "-B", "-c", "pass"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def killed_at_each_step(self, verb, before):
        """Kill the verb before its first change, then before its second, and so on. Yield after each kill.

        ``before`` prepares each try: it is a verb, or a function that is called with ``self``.
        """
        number = 0
        while True:
            number += 1
            before(self) if callable(before) else self.succeed(before)
            status, said = self.run(verb, number=number)
            if status != -signal.SIGKILL:
                assert (status, int(said.splitlines()[-1])) == (0, number - 1), said
                return
            self.start()
            yield number


@pytest.fixture(scope="module")
def running():
    base = environments.interpreter("3.11") or pytest.skip("no Python 3.11 on this machine")
    started = Verbs(environments.environment(base, name="interrupted installs"))
    with started.process:
        yield started


@pytest.fixture
def verbs(running):
    """Return verbs for an environment without start-up files, and check at the end that site-packages is unchanged."""
    running.succeed("uninstall")
    before = tree(running.packages)
    yield running
    running.succeed("uninstall")
    assert tree(running.packages) == before


def downgrade(verbs):
    """Install, and change the files so that they appear to be of an earlier version."""
    verbs.succeed("install")
    (verbs.packages / "_autogpu_hook.py").write_text(EARLIER)
    (info,) = verbs.packages.glob("autogpu_autoload-*.dist-info")
    info.rename(verbs.packages / "autogpu_autoload-0.0.1.dist-info")


@pytest.mark.parametrize(
    ("verb", "before", "following"),
    [
        pytest.param("install", "uninstall", "install", id="install-completes-killed-install"),
        pytest.param("install", "uninstall", "uninstall", id="uninstall-undoes-killed-install"),
        pytest.param("uninstall", "install", "uninstall", id="uninstall-completes-killed-uninstall"),
        pytest.param("install", downgrade, "install", id="install-completes-killed-upgrade"),
    ],
)
def test_next_verb_succeeds_after_a_kill_at_any_step(verbs, verb, before, following):
    look = installed if following == "install" else tree
    verbs.succeed(following)
    whole, step = look(verbs.packages), 0
    for step in verbs.killed_at_each_step(verb, before):
        verbs.succeed(following)
        assert look(verbs.packages) == whole, f"after step {step}"
        verbs.succeed("uninstall")
    print(f"\n{verb}: killed before each of its {step} changes; the next {following} left the tree as it should be")
    assert step > 10


def test_six_verbs_at_the_same_time_all_succeed(verbs):
    before = tree(verbs.packages)
    for each in (["install"] * 6, ["uninstall", "install"] * 3):
        verbs.succeed(*each)
        verbs.succeed("uninstall")
        assert tree(verbs.packages) == before


@pytest.mark.parametrize("most_bytes", [0, 100, 1500, 4200], ids=str)
@pytest.mark.parametrize("earlier", [False, True], ids=["fresh-environment", "damaged-files"])
def test_install_that_can_not_write_removes_its_files(verbs, most_bytes, earlier):
    before = tree(verbs.packages)
    if earlier:
        verbs.succeed("install")
        for name in ("_autogpu_hook.py", "_autogpu_steps.py"):
            (verbs.packages / name).write_text(EARLIER)
    status, said = verbs.run("install", most_bytes=most_bytes)
    assert (status, "Traceback" in said, "File too large" in said) == (1, False, True), said
    assert tree(verbs.packages) == before
    verbs.succeed("install")
