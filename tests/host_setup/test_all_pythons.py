"""`autogpu host-setup --all-pythons` on this machine, in a mount namespace with copies of the folders it changes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hook.test_hook import interpreter
from tests.support.containers import NO_NAMESPACES
from tests.support.environments import ENVIRON, ROOT
from tests.support.persons import NO_PERSON, PERSON, as_person, run

DEBIANS = Path("/usr/bin/python3")
COPIED = ("/etc", "/usr/lib/python3", "/usr/local/lib", "/run")
NAME = "autogpu-person"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.xdist_group("all-pythons"),
    pytest.mark.skipif(bool(NO_NAMESPACES or NO_PERSON), reason=NO_NAMESPACES or NO_PERSON),
    pytest.mark.skipif(not Path("/etc/security/pam_env.conf").exists(), reason="needs PAM"),
]

HOOK = "import sys; hook = sys.modules.get('_autogpu_hook'); print(getattr(hook, '__file__', None))"

PRELUDE = """
set -e
mount -t tmpfs -o mode=755,size=1g none "$0"
for folder; do mkdir -p "$0$folder"; cp -a "$folder/." "$0$folder/"; mount --bind "$0$folder" "$folder"; done
echo ready
exec sleep 3600
"""


def changed(before, after):
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def differ(before, after):
    """Return the changed files, without each ``.pyc`` and ``host.json`` in both: these can differ from run to run."""
    found = changed(before, after)
    return {
        path for path in found if not path.endswith((".pyc", "host.json")) or path not in before or path not in after
    }


class Machine:
    """This machine, but changes of some folders are visible only in a mount namespace."""

    def __init__(self, place, folders):
        self.folders = folders
        command = ["unshare", "--mount", "--", "sh", "-c", PRELUDE, str(place), *folders]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.process.stdout.readline()
        assert said == "ready\n", said + self.process.stdout.read()
        done = self.run("useradd", "--uid", str(PERSON), "--no-create-home", "--home-dir", "/", NAME)
        assert done.returncode == 0, done.stderr

    def run(self, *command, **environ):
        entered = ["nsenter", f"--target={self.process.pid}", "--mount", "--", *command]
        return run(entered, env={**ENVIRON, **environ}, cwd="/", timeout=300)

    def start(self, *command):
        entered = ["nsenter", f"--target={self.process.pid}", "--mount", "--", *command]
        return subprocess.Popen(
            entered, env=ENVIRON, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def host_setup(self, *options):
        return self.run(sys.executable, "-m", "autogpu", "host-setup", *options)

    def starts(self, python, *options, **environ):
        """Start Python as an ordinary user, and return the file of the hook that it loads, and its stderr."""
        done = self.run(*as_person([str(python), *options, "-c", HOOK]), **environ)
        return done.stdout.strip(), done.stderr

    def files(self):
        """Return the mode and a hash of each file, keyed by path."""
        program = (
            "import hashlib, json, os, sys\nfound = {}\n"
            "for top in sys.argv[1:]:\n"
            "    for folder, _, names in os.walk(top):\n"
            "        for name in names:\n"
            "            path = os.path.join(folder, name)\n"
            "            is_link = os.path.islink(path)\n"
            "            content = os.readlink(path).encode() if is_link else open(path, 'rb').read()\n"
            "            found[path] = [os.lstat(path).st_mode, hashlib.sha256(content).hexdigest()]\n"
            "print(json.dumps(found))"
        )
        done = self.run(sys.executable, "-I", "-c", program, *(folder for folder in self.folders if folder != "/run"))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def named():
    """A base Python that host-setup finds only by --python."""
    found = interpreter("3.8") or interpreter("3.9")
    if found is None or not DEBIANS.exists():
        pytest.skip("needs Debian's Python and another one")
    return found


@pytest.fixture
def machine(tmp_path, named):
    debians = run([str(DEBIANS), "-c", "import os; print(os.path.dirname(os.__file__))"]).stdout.strip()
    libraries = run([str(named), "-c", "import os; print(os.path.dirname(os.__file__))"]).stdout.strip()
    made = Machine(tmp_path, ["/etc", debians, libraries, "/usr/local/lib", "/run"])
    yield made
    made.end()


def test_every_start_of_python_loads_the_hook_and_undo_restores_all(machine, named):
    before = machine.files()
    shown = machine.host_setup("--all-pythons", "--python", str(named), "--print")
    assert (shown.returncode, machine.files()) == (0, before), shown.stderr
    done = machine.host_setup("--all-pythons", "--python", str(named))
    assert (done.returncode, done.stderr) == (0, "")
    for path in changed(before, machine.files()):
        assert path in shown.stdout or "/usr/local/lib/autogpu" in path or "__pycache__" in path, path
    again = machine.host_setup("--all-pythons", "--python", str(named))
    assert "built" not in again.stdout and "wrote" not in again.stdout and "changed" not in again.stdout, again.stdout
    assert machine.host_setup("--check").returncode == 0

    link = "/usr/local/lib/autogpu"
    version = machine.run("readlink", link).stdout.strip()
    by_path, by_base = f"/usr/local/lib/{version}/sitecustomize.py", f"/usr/local/lib/{version}/sitecustomize.py"
    for shell in (["su", NAME, "-c"], ["su", "-", NAME, "-c"]):
        found = machine.run(*shell, f'printf %s: "$PYTHONPATH"; {DEBIANS} -c "{HOOK}"')
        assert (found.stdout, found.stderr) == (f"{link}:{by_path}\n", "")
    login = machine.run(*as_person(["bash", "-lc", 'printf %s "$PYTHONPATH"']), PYTHONPATH="/mine")
    assert login.stdout == f"/mine:{link}"
    for python in (DEBIANS, named):
        assert machine.starts(python) == (by_base, "")
        assert machine.starts(python, "-E") == (by_base, "")
        assert machine.starts(python, "-I") == (by_base, "")
        assert machine.starts(python, PYTHONPATH="/mine") == (by_base, "")
        assert machine.starts(python, "-S") == ("None", "")
        assert machine.run(str(python), "-c", HOOK).stdout == "None\n"

    planned = machine.host_setup("--undo", "--print")
    for path in changed(before, machine.files()):
        assert path in planned.stdout or "/usr/local/lib/autogpu" in path or "__pycache__" in path, path
    undone = machine.host_setup("--undo")
    assert (undone.returncode, undone.stderr) == (0, "")
    assert machine.files() == before
    assert machine.host_setup("--undo").stdout.splitlines()[-1].startswith(("kept /run/autogpu", "There is nothing"))


def test_new_sitecustomize_runs_the_one_that_it_hides(machine, named):
    library = run([str(named), "-c", "import site; print(site.getsitepackages()[0])"]).stdout.strip()
    machine.host_setup("--all-pythons", "--python", str(named))
    for text, said in (("print('hidden')", ("hidden", "")), ("1 / 0", ("", "ZeroDivisionError: division by zero"))):
        machine.run("sh", "-c", f'echo "{text}" >{library}/sitecustomize.py')
        stdout, stderr = machine.starts(named)
        assert (stdout.split()[:-1], said[1] in stderr) == (said[0].split(), True)


# This script runs a command of autogpu. It kills itself just before the n-th change below /etc or /usr.
KILLED = """
import os, signal, sys
from autogpu.cli import main
number, *command = sys.argv[1:]
seen = 0
def on_event(event, arguments):
    global seen
    if event in ("os.rename", "os.remove", "os.symlink") and str(arguments[0]).startswith(("/etc", "/usr", "autogpu-")):
        seen += 1
        if seen == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(on_event)
status = main.run(command)
print(f"changes: {seen}")
sys.exit(status)
"""


@pytest.mark.turns(2, 0)
def test_killed_run_is_completed_by_the_next_one(machine, named):
    before = machine.files()

    def command(number, *options):
        return machine.run(sys.executable, "-c", KILLED, str(number), "host-setup", *options)

    def silent():
        assert [said for _, said in (machine.starts(DEBIANS), machine.starts(named)) if said] == []

    set_up = ("--all-pythons", "--python", str(named))
    for options, opposite in ((set_up, ("--undo",)), (("--undo",), set_up)):
        done = command(0, *options)
        assert done.returncode == 0, done.stderr
        changes = min(int(done.stdout.rpartition("changes: ")[2]), 40)
        complete = machine.files()
        command(0, *opposite)
        for number in range(1, changes + 1):
            killed = command(number, *options)
            silent()
            if killed.returncode == 0:
                break
            assert command(0, *options).returncode == 0
            silent()
            assert differ(complete, machine.files()) == set()
            command(0, *opposite)
    command(0, "--undo")
    assert changed(before, machine.files()) == set()


def test_without_root_nothing_changes_and_the_sudo_command_is_printed():
    command = [sys.executable, "-m", "autogpu", "host-setup", "--all-pythons"]
    done = run(as_person(command), env=ENVIRON, cwd=str(ROOT), timeout=60)
    assert (done.returncode, os.path.lexists("/usr/local/lib/autogpu")) == (1, False)
    assert done.stderr.splitlines() == [
        "autogpu: host-setup needs root, because it writes below /etc and /run",
        "autogpu: sudo $(command -v autogpu) host-setup --all-pythons",
    ]


def test_python_on_a_read_only_disk_does_not_stop_the_run(machine, named):
    library = run([str(named), "-c", "import os; print(os.path.dirname(os.__file__))"]).stdout.strip()
    before = machine.files()
    machine.run("mount", "-o", "remount,bind,ro", library)
    done = machine.host_setup("--all-pythons", "--python", str(named))
    assert (done.returncode, done.stderr) == (
        1,
        f"autogpu: {library}/sitecustomize.py can't be changed: Read-only file system\n",
    )
    assert "changed /etc/python3" in done.stdout
    assert machine.starts(DEBIANS, "-E")[0].endswith("sitecustomize.py")
    machine.run("mount", "-o", "remount,bind,rw", library)
    assert machine.host_setup("--all-pythons", "--python", str(named)).returncode == 0
    machine.run("mount", "-o", "remount,bind,ro", library)
    undone = machine.host_setup("--undo")
    assert (undone.returncode, "can't be changed" in undone.stderr) == (1, True)
    machine.run("mount", "-o", "remount,bind,rw", library)
    assert machine.host_setup("--undo").returncode == 0
    assert changed(before, machine.files()) == set()


def test_folders_with_similar_names_are_never_removed(machine):
    kept = ("/usr/local/lib/autogpu-backup", "/usr/local/lib/autogpu-env", "/usr/local/lib/autogpu-1.0-0123456g")
    machine.run("mkdir", *kept)
    machine.run("touch", "-d", "2001-01-01", *kept)
    assert machine.host_setup("--all-pythons").returncode == 0
    assert machine.host_setup("--undo").returncode == 0
    assert machine.run("ls", "-d", *kept).returncode == 0
    machine.run("mkdir", "/usr/local/lib/autogpu")
    refused = machine.host_setup("--all-pythons")
    assert (refused.returncode, "is not the link that autogpu makes" in refused.stderr) == (1, True)
    machine.host_setup("--undo")
    assert machine.run("ls", "-d", "/usr/local/lib/autogpu").returncode == 0


def test_check_reports_a_removed_hook_folder(machine):
    assert machine.host_setup("--all-pythons").returncode == 0
    machine.run("rm", "/usr/local/lib/autogpu")
    checked = machine.host_setup("--check")
    assert (checked.returncode, "the link is gone, but" in checked.stdout) == (1, True)


def test_two_runs_at_once_wait_for_each_other_but_not_for_a_users_lock(machine, named):
    hold = [*as_person(["flock", "-x", "/usr/local/lib", "-c", "echo locked; sleep 600"])]
    with machine.start(*hold) as user:
        assert user.stdout.readline() == "locked\n"
        command = [sys.executable, "-m", "autogpu", "host-setup", "--all-pythons", "--python", str(named)]
        runs = [machine.start(*command) for _ in range(2)]
        said = [each.communicate(timeout=300) for each in runs]
        user.kill()
    assert [each.returncode for each in runs] == [0, 0], said
    assert machine.host_setup("--check").returncode == 0
    assert len([line for stdout, _ in said for line in stdout.splitlines() if line.startswith("built")]) == 1
