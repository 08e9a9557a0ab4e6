"""A host's hook folder on PYTHONPATH of real Pythons: complete, broken, during upgrades, after a killed build."""

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

import autogpu
from autogpu import install as installing
from autogpu.host import hook_folder
from autogpu.host.model import HostFault, HostProblem
from autogpu.host.pythons import BasePython
from autogpu.install import PRIVATE
from autogpu.users import is_person
from tests.conftest import each_python
from tests.hook import throwaway
from tests.support import environments
from tests.support.environments import ROOT, interpreter
from tests.support.persons import NO_PERSON, as_person, as_person_alone, as_user, give, run

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.xdist_group("hook-folder"),
    pytest.mark.skipif(bool(NO_PERSON), reason=NO_PERSON),
]

OWN = "3.11"
DEBIANS = Path("/usr/bin/python3")
WITHOUT = "autogpu: not applied: {} was removed or changed; AUTOGPU=0 turns autogpu off\n"
HOOKED = "import sys; print('_autogpu_hook' in sys.modules)"
IMPORT = "import tensorflow; import sys; print('autogpu.activation' in sys.modules)"


def python_of(version):
    tag = f"cpython-{version.replace('.', '')}"
    executable = str(interpreter(version))
    library = run([executable, "-c", "import os; print(os.path.dirname(os.__file__))"]).stdout.strip()
    return BasePython(executable, version, tag, Path(library))


def build(link, versions):
    pythons = [python_of(version) for version in versions]
    return hook_folder.build(link, hook_folder.sources(), pythons, (), lambda line: None)


@pytest.fixture(scope="session")
def place():
    """A folder that every user can enter. Only root can enter pytest's folders."""
    made = Path(tempfile.mkdtemp(prefix="autogpu-host-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(str(made), ignore_errors=True)


@pytest.fixture(scope="session")
def built(place):
    """The link to a hook folder with compiled files for all Pythons of this machine."""
    link = place / "autogpu"
    build(link, [version for version in environments.SUPPORTED if interpreter(version)])
    return link


@pytest.fixture
def own(place, tmp_path_factory):
    """The link to a hook folder that the test may break."""
    folder = Path(tempfile.mkdtemp(dir=str(place)))
    folder.chmod(0o755)
    link = folder / "autogpu"
    build(link, [OWN])
    return link


@pytest.fixture
def project(place):
    made = Path(tempfile.mkdtemp(dir=str(place)))
    made.chmod(0o755)
    give(made)
    throwaway.write(made, {"tensorflow.py": "", "autogpu.toml": "[select]\ncount = 3\n"})
    return made


@pytest.fixture(scope="session")
def bare(place):
    """Return a function that makes an empty environment for a Python version, and returns its Python."""
    made = {}

    def environment(version):
        if version not in made:
            folder = place / f"env-{version}"
            run([str(interpreter(version)), "-m", "venv", "--without-pip", str(folder)], check=True)
            made[version] = folder / "bin" / "python"
        return made[version]

    return environment


def start(python, program, project, *path, options=(), by=as_person, **environ):
    pythonpath = os.pathsep.join(map(str, path))
    given = {**environments.ENVIRON, "PYTHONPATH": pythonpath, "HOME": str(project), **environ}
    return run(by([str(python), *options, "-c", program]), env=given, cwd=project)


# This script prints the private modules that it can import, the policy, and the modules without a compiled file.
LOOK = """
import importlib.util, os, pathlib, sys
names = ("pynvml", "tomli", "click", "rich", "_autogpu_steps", "_autogpu_host", "autogpu_private")
print([name for name in names if importlib.util.find_spec(name) is not None])
import tensorflow
from autogpu import policy, _vendor
from autogpu.devices import nvml
here = pathlib.Path.cwd()
resolved = policy.resolve(os.environ, script=here / "x.py", working_directory=here)
print(resolved.policy.count, [*resolved.problems])
print(os.path.dirname(os.path.dirname(nvml.load_pynvml().__file__)) == os.path.dirname(sys.modules["autogpu"].__file__))
files = {name: module for name, module in sys.modules.items() if name.startswith(("autogpu", "_autogpu"))}
print([name for name, module in files.items() if not os.path.exists(module.__spec__.cached)])
print(sys.modules["autogpu"].__file__)
"""


@pytest.mark.parametrize("options", ["", "-O", "-OO", "-s", "-B", "-W error", "-X dev"])
@pytest.mark.parametrize("version", each_python())
def test_script_gets_autogpu_but_cannot_import_its_private_modules(built, bare, project, version, options):
    done = start(bare(version), LOOK, project, built, options=options.split())
    package = built.resolve() / PRIVATE / "autogpu" / "__init__.py"
    assert done.stdout.splitlines() == ["[]", "3 []", "True", "[]", str(package)], done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "has_hook"), [("-P", True), ("-I", False), ("-E", False), ("-S", False), ("-s", True)]
)
def test_options_that_skip_pythonpath_or_site_hide_the_folder(built, bare, project, options, has_hook):
    done = start(bare(OWN), HOOKED, project, built, options=[options])
    assert (done.stdout, done.stderr) == (f"{has_hook}\n", "")


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_python_before_3_7_starts_as_without_the_folder(built, project, version):
    if interpreter(version) is None:
        pytest.skip(f"no Python {version} on this machine")
    throwaway.write(project, {"hidden/sitecustomize.py": "print('hidden')"})
    done = start(interpreter(version), HOOKED, project, built, project / "hidden")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hidden\nFalse\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("uid", "has_hook"),
    [
        (0, False),
        (999, False),
        (1000, True),
        (59999, True),
        (60000, False),
        (65534, False),
        (65535, False),
        (65536, True),
    ],
)
def test_folder_serves_people_but_not_root_and_system_users(built, bare, project, uid, has_hook):
    done = start(bare(OWN), HOOKED, project, built, by=lambda command: as_user(uid, command))
    assert (done.stdout, done.stderr) == (f"{has_hook}\n", "")
    assert is_person(uid) == has_hook


def test_folder_runs_the_sitecustomize_that_it_hides(built, bare, project):
    throwaway.write(project, {"hidden/sitecustomize.py": "print('hidden')"})
    done = start(bare(OWN), HOOKED, project, built, project / "hidden")
    assert (done.stdout, done.stderr) == ("hidden\nTrue\n", "")


def test_earlier_sitecustomize_on_pythonpath_hides_the_hook(built, bare, project):
    throwaway.write(project, {"front/sitecustomize.py": "print('front')"})
    done = start(bare(OWN), f"{HOOKED}; import tensorflow", project, project / "front", built)
    assert (done.stdout, done.stderr) == ("front\nFalse\n", "")


@pytest.mark.parametrize("version", each_python())
def test_autogpu_of_the_environment_is_used_before_that_of_the_host(built, project, version):
    with tempfile.TemporaryDirectory(dir=str(project)) as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        major, minor = map(int, version.split("."))
        env = throwaway.make(interpreter(version), (major, minor), Path(folder) / "env")
        (project / "tensorflow.py").unlink()
        events = project / "events"

        def steps():
            events.unlink(missing_ok=True)
            done = start(
                env.python, "import tensorflow, autogpu; print(autogpu.__file__)", project, built, EVENTS=str(events)
            )
            said = events.read_text().split() if events.exists() else []
            return [word for word in said if word != "None"], done.stdout.strip(), done.stderr

        theirs = str(env.site_packages / "autogpu" / "__init__.py")
        hooked = (["before", "body", "after"], theirs, "")
        assert steps() == hooked
        # Remove the environment's hook: the host's hook must call the environment's package.
        for name in ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth"):
            (env.site_packages / name).unlink()
        assert steps() == hooked
        # Put the hook back and remove the package: the environment's hook must call the host's package.
        shutil.rmtree(env.site_packages / "autogpu")
        for name in ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth"):
            file = throwaway.template_file(throwaway.TEMPLATES, name)
            (env.site_packages / name).write_bytes(file.read_bytes())
        assert steps() == (["body"], str(built.resolve() / PRIVATE / "autogpu" / "__init__.py"), "")


@pytest.mark.parametrize(
    ("files", "steps", "said"),
    [
        ({"autogpu/readme.txt": ""}, True, ""),
        (
            {"autogpu.py": "raise SystemExit('run')"},
            False,
            "autogpu: not applied to tensorflow: a module of the script is named autogpu and hides the package; "
            "AUTOGPU=0 turns autogpu off\n",
        ),
        (
            {"autogpu/__init__.py": "raise SystemExit('run')", "autogpu/activation.py": ""},
            False,
            "autogpu: not applied to tensorflow: a module of the script is named autogpu and hides the package; "
            "AUTOGPU=0 turns autogpu off\n",
        ),
    ],
    ids=["folder-without-code", "module", "package"],
)
def test_autogpu_module_of_the_script_is_never_run(built, bare, project, files, steps, said):
    throwaway.write(project, files)
    done = start(bare(OWN), IMPORT, project, built)
    assert (done.stdout, done.stderr) == (f"{steps}\n", said)


def test_scripts_own_pynvml_and_tomli_are_not_replaced(built, bare, project):
    throwaway.write(project, {"pynvml.py": "mine = 1", "tomli.py": "mine = 1"})
    program = "import tensorflow, pynvml, tomli; print(pynvml.mine, tomli.mine)\n" + (
        "from autogpu.devices import nvml; print(hasattr(nvml.load_pynvml(), 'nvmlInit'))"
    )
    done = start(bare(OWN), program, project, built)
    assert (done.stdout, done.stderr) == ("1 1\nTrue\n", "")


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


BROKEN = {
    "private-part-gone": lambda folder: shutil.rmtree(folder / PRIVATE),
    "steps-gone": lambda folder: [path.unlink() for path in (folder / PRIVATE).rglob("_autogpu_steps*")],
    "steps-cut": lambda folder: [cut(path) for path in (folder / PRIVATE).rglob("_autogpu_steps*")],
    "writable-by-others": lambda folder: (folder / PRIVATE).chmod(0o777),
    "writable-by-a-group": lambda folder: (folder / PRIVATE).chmod(0o775),
    "of-another-user": lambda folder: os.chown(folder / PRIVATE, 4242, 4242),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_private_folder_prints_one_line_at_framework_import(own, bare, project, name):
    if name == "of-another-user" and os.geteuid():
        pytest.skip("only root can give a folder away")
    BROKEN[name](own.resolve())
    silent = start(bare(OWN), HOOKED, project, own)
    assert (silent.stdout, silent.stderr) == ("True\n", "")
    throwaway.write(project, {"jax.py": ""})
    done = start(bare(OWN), f"{IMPORT}; import jax", project, own)
    assert (done.stdout, done.stderr) == ("False\n", WITHOUT.format(own.resolve()))
    assert hook_folder.examine(own, os.geteuid()).problem


@pytest.mark.parametrize("name", ["missing", "dangling", "a-pipe", "not-readable", "empty"])
def test_python_starts_silently_without_the_folder(place, bare, project, name):
    link = Path(tempfile.mkdtemp(dir=str(place))) / "autogpu"
    {
        "missing": lambda: None,
        "dangling": lambda: link.symlink_to("gone"),
        "a-pipe": lambda: os.mkfifo(link),
        "not-readable": lambda: link.mkdir(0o000),
        "empty": lambda: link.mkdir(),
    }[name]()
    python = DEBIANS if name == "not-readable" else bare(OWN)
    if not python.exists():
        pytest.skip(f"needs {python}, which every user can start")
    done = start(python, IMPORT, project, link, by=as_person_alone if name == "not-readable" else as_person)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_examine_finds_a_changed_file_and_a_foreign_owner(own):
    uid = os.geteuid()
    found = hook_folder.examine(own, uid)
    assert (found.version, list(found.tags), found.problem) == (autogpu.__version__, ["cpython-311"], None)
    cut(next((own / "__pycache__").glob("sitecustomize.*.pyc")))
    folder = str(own.resolve())
    assert hook_folder.examine(own, uid).problem == HostProblem(HostFault.FOLDER_DIFFERS, folder)
    assert hook_folder.examine(own, uid + 1).problem == HostProblem(HostFault.FOLDER_OPEN_TO_OTHERS, folder)
    assert hook_folder.examine(own.with_name("gone"), uid) is None


def test_python_started_during_an_upgrade_uses_one_version(place, bare, project):
    """Start 40 Pythons during 10 upgrades. Each prints the folders of its hook and of its package."""
    link = Path(tempfile.mkdtemp(dir=str(place))) / "autogpu"
    link.parent.chmod(0o755)
    python, sources = python_of(OWN), hook_folder.sources()

    def put(number):
        module = f"{PRIVATE}/autogpu/__init__.py"
        files = {**sources, module: sources[module] + f"number = {number}\n".encode()}
        hook_folder.build(link, files, [python], (), lambda line: None)

    put(0)
    program = "import time; time.sleep(0.05); import tensorflow, autogpu, _autogpu_hook\n" + (
        "print(_autogpu_hook.folders[0], autogpu.__file__)"
    )
    environ = {**environments.ENVIRON, "PYTHONPATH": str(link)}
    command = as_person([str(bare(OWN)), "-c", program])
    running, ended = [], []
    for number in range(1, 11):
        for _ in range(4):
            pipe = subprocess.PIPE
            running.append(subprocess.Popen(command, env=environ, cwd=project, text=True, stdout=pipe, stderr=pipe))
        put(number)
    for process in running:
        ended.append(process.communicate(timeout=120))
    assert [said for _, said in ended if said] == []
    pairs = [stdout.split() for stdout, _ in ended]
    assert [package for folder, package in pairs if not package.startswith(folder + "/")] == []
    assert len({folder for folder, _ in pairs}) > 1
    # Replaced versions must stay until the next boot.
    assert hook_folder.remove_old(link, 0) == []
    assert len(hook_folder.versions(link)) == 11
    hook_folder.remove_old(link, float("inf"))
    assert hook_folder.versions(link) == [link.resolve()]


# This script builds a hook folder. It kills itself just before the n-th change of a file.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from autogpu.host import hook_folder
from autogpu.host.pythons import BasePython
from autogpu.install import PRIVATE
from autogpu.users import is_person
link, number, *python = json.loads(sys.argv[1])
seen = 0
def on_event(event, arguments):
    global seen
    is_change = event in ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.symlink", "os.chmod", "os.utime")
    is_change = is_change or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
    if is_change and any(os.path.dirname(link) in str(argument) for argument in arguments):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(on_event)
executable, version, tag, library = python
sources = hook_folder.sources()
sources["autogpu-private/autogpu/__init__.py"] += b"number = %d\\n" % number
os.makedirs(os.path.join(os.path.dirname(link), "run"), exist_ok=True)
with hook_folder.changing(Path(link).parent):
    hook_folder.build(Path(link), sources, [BasePython(executable, version, tag, Path(library))], (), lambda line: None)
    hook_folder.remove_old(Path(link), 0)
print(seen)
"""


@pytest.mark.turns(2, 1)
def test_killed_build_leaves_a_working_folder(own, bare, project):
    python = python_of(OWN)

    def killed_at(number):
        given = json.dumps([str(own), number, python.executable, python.version, python.tag, str(python.library)])
        return run([str(environments.environment(interpreter(OWN))), "-c", KILLED, given], cwd="/")

    whole = killed_at(0)
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    # The package has hundreds of files, all written in the same way. Each step after them is different.
    for number in (1, 2, 3, steps // 2, *range(steps - 12, steps + 1)):
        assert killed_at(number).returncode == -9
        done = start(bare(OWN), IMPORT, project, own)
        assert (done.stdout, done.stderr) == ("True\n", ""), number
        assert hook_folder.examine(own, os.geteuid()).problem is None
    assert killed_at(0).returncode == 0
    assert [path for path in hook_folder.versions(own) if path.name.startswith(".")] == []


def test_folder_has_no_module_of_the_commands(built):
    top = {path.name for path in (built / PRIVATE / "autogpu").iterdir()}
    assert top.isdisjoint({"cli", "doctor", "status", "host", "install.py"})
    assert {path.name for path in built.iterdir()} == {"sitecustomize.py", "__pycache__", PRIVATE}
    text = (built / "sitecustomize.py").read_bytes()
    assert text == (ROOT / "sitecustomize_template" / "run" / "sitecustomize.py").read_bytes()


def test_python_m_autogpu_explains_why_there_are_no_commands(built, bare, project):
    given = {**environments.ENVIRON, "PYTHONPATH": str(built)}
    done = run(as_person([str(bare(OWN)), "-m", "autogpu", "status"]), env=given, cwd=project)
    package = built.resolve() / PRIVATE / "autogpu"
    said = f"autogpu: autogpu {autogpu.__version__} from {package} lacks "
    assert (done.returncode, done.stdout, done.stderr.startswith(said)) == (1, "", True), done.stderr
    assert done.stderr.endswith(f", which its commands need; install autogpu into the environment of {bare(OWN)}\n")


def test_uninstall_reports_that_the_host_still_serves_the_environment(built, project):
    python = environments.environment(interpreter(OWN))
    given = {**environments.ENVIRON, "PYTHONPATH": str(built), "HOME": str(project)}
    done = run(as_person([str(python), "-m", "autogpu", "uninstall", "--this-python"]), env=given, cwd=project)
    nothing, hosts, _ = done.stdout.splitlines()
    assert (done.returncode, nothing.endswith("there is nothing to do.")) == (0, True), done.stderr
    assert hosts == f"This Python still loads autogpu, by the hook of this host: {built.resolve()}/sitecustomize.py"


@pytest.mark.parametrize("stderr", throwaway.UNREAD)
def test_removed_folder_neither_kills_nor_blocks_a_script(own, bare, project, stderr):
    shutil.rmtree(own.resolve() / PRIVATE)
    done = start(bare(OWN), throwaway.UNREAD[stderr], project, own)
    assert (done.returncode, done.stdout) == (0, "alive")


def test_autogpu_in_a_folder_above_the_install_target_is_never_run(place, project):
    """Another user could have put a package of that name into such a folder, for example into /tmp."""
    throwaway.write(project, {"autogpu/__init__.py": "raise SystemExit('run')", "autogpu/activation.py": ""})
    target = project / "alice" / "t"
    target.mkdir(parents=True)
    for path, content in installing.plan_install(target, "sitecustomize").items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (target / "tensorflow.py").write_text("")
    done = start(interpreter(OWN), "import tensorflow; print('ran')", target, target)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert done.stderr.startswith("autogpu: not applied to tensorflow: ModuleNotFoundError"), done.stderr


def test_hidden_sitecustomize_in_a_zip_archive_is_run(built, project):
    with zipfile.ZipFile(project / "archive.zip", "w") as archive:
        archive.writestr("sitecustomize.py", "print('hidden')")
    for version in (version for version in environments.SUPPORTED if interpreter(version)):
        done = start(interpreter(version), HOOKED, project, built, project / "archive.zip")
        assert (done.stdout, done.stderr) == ("hidden\nTrue\n", ""), version
