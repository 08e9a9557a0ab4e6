"""`autogpu host-setup --all-pythons` on this machine, in a mount namespace where its folders are copies."""

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
    pytest.mark.slow,
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
    """The same without the bytes of what Python compiles: these may differ from run to run."""
    found = changed(before, after)
    return {
        path for path in found if not path.endswith((".pyc", "host.json")) or path not in before or path not in after
    }


class Machine:
    """This machine with folders of its own."""

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

    def host_setup(self, *options):
        return self.run(sys.executable, "-m", "autogpu", "host-setup", *options)

    def starts(self, python, *options, **environ):
        """The file of the hook that a person's Python loads, and what the start prints besides."""
        done = self.run(*as_person([str(python), *options, "-c", HOOK]), **environ)
        return done.stdout.strip(), done.stderr

    def files(self):
        """Each file of the folders, with its bytes and mode."""
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
    """A base Python that is not where a host has its own."""
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


def test_every_start_is_reached_and_undo_gives_back_every_byte(machine, named):
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
    assert machine.host_setup("--undo").stdout.splitlines()[-1].startswith(("/run/autogpu stays", "There is nothing"))


def test_a_sitecustomize_that_a_new_one_hides_is_run_and_has_its_own_errors(machine, named):
    library = run([str(named), "-c", "import site; print(site.getsitepackages()[0])"]).stdout.strip()
    machine.host_setup("--all-pythons", "--python", str(named))
    for text, said in (("print('hidden')", ("hidden", "")), ("1 / 0", ("", "ZeroDivisionError: division by zero"))):
        machine.run("sh", "-c", f'echo "{text}" >{library}/sitecustomize.py')
        stdout, stderr = machine.starts(named)
        assert (stdout.split()[:-1], said[1] in stderr) == (said[0].split(), True)


# Runs a command of autogpu, and dies just before the change of a number below /etc or /usr.
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


@pytest.mark.thorough
def test_a_run_that_is_killed_at_any_change_is_completed_by_the_next(machine, named):
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


def test_without_root_nothing_is_changed_and_the_command_is_named():
    command = [sys.executable, "-m", "autogpu", "host-setup", "--all-pythons"]
    done = run(as_person(command), env=ENVIRON, cwd=str(ROOT), timeout=60)
    assert (done.returncode, os.path.lexists("/usr/local/lib/autogpu")) == (1, False)
    assert done.stderr.startswith("autogpu: host-setup writes below /etc and /run, which only root may\n")


def test_a_python_on_a_disk_that_is_read_only_keeps_nothing_else_from_being_done(machine, named):
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


def test_what_only_resembles_a_version_of_autogpu_stays(machine):
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


def test_a_lost_folder_is_found_by_check(machine):
    assert machine.host_setup("--all-pythons").returncode == 0
    machine.run("rm", "/usr/local/lib/autogpu")
    checked = machine.host_setup("--check")
    assert (checked.returncode, "leads to it, and it is gone" in checked.stdout) == (1, True)
