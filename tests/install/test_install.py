"""Install and uninstall of the start-up files in a folder."""

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autogpu
from autogpu import install as installing
from autogpu.cli import main as frame
from autogpu.install import InstallFault, InstallProblem, InstallStopped
from tests.support.environments import ROOT

TEMPLATES = ROOT / "sitecustomize_template"


def tree(folder):
    """Return the mode and content of each file below ``folder``, keyed by relative path."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def installed(folder):
    """Return :func:`tree` without the content of ``.pyc`` files, which contains the modification time of the source."""
    return {name: None if name.endswith(".pyc") else found for name, found in tree(folder).items()}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.fixture
def hidden(tmp_path):
    """Return a path for a second sitecustomize, in a folder that tests put behind ``folder`` on ``PYTHONPATH``."""
    made = tmp_path / "hidden"
    made.mkdir()
    return made / "sitecustomize.py"


def start(code, *pythonpath):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, pythonpath))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def problem_of(action, *arguments, **options):
    with pytest.raises(InstallStopped) as refused:
        action(*arguments, **options)
    return refused.value.problem


def test_last_file_of_the_plan_is_the_one_that_loads_the_hook():
    folder = Path("/env")
    info = folder / f"autogpu_autoload-{autogpu.__version__}.dist-info"
    steps, hook, switch = (folder / name for name in ("_autogpu_steps.py", "_autogpu_hook.py", "autogpu.pth"))
    listed = [info / name for name in ("INSTALLER", "METADATA", "WHEEL", "RECORD")]
    assert list(installing.plan_install(folder, "pth")) == [steps, hook, *listed, switch]
    assert list(installing.plan_install(folder, "sitecustomize")) == [steps, *listed, folder / "sitecustomize.py"]


@pytest.mark.parametrize(
    ("version", "starter"), [((3, 7), "autogpu.pth"), ((3, 17), "autogpu.pth"), ((3, 18), "autogpu.start")], ids=str
)
def test_start_file_is_written_if_python_ignores_the_pth(version, starter):
    assert installing.path_starter(version) == starter


def test_start_file_of_an_earlier_install_is_removed(folder):
    start_file = folder / installing.START
    start_file.write_bytes(installing.template_file(installing.template_folder(), installing.START).read_bytes())
    installing.install(folder)
    assert not start_file.exists()


def test_record_has_the_hash_of_every_file(folder):
    installing.install(folder)
    (info,) = installing.distributions(folder)
    assert info.name == f"autogpu_autoload-{autogpu.__version__}.dist-info"
    rows = {row[0]: row[1:] for row in csv.reader((info / "RECORD").read_text().splitlines())}
    assert set(rows) == {name for name in tree(folder) if (folder / name).is_file() and not name.endswith(".pyc")}
    for name, (digest, size) in rows.items():
        if not name.endswith("RECORD"):
            content = (folder / name).read_bytes()
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={expected}", str(len(content)))


def test_second_install_touches_no_file(folder):
    installing.install(folder)
    times = [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))]
    assert installing.install(folder) == ()
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))] == times


def test_install_compiles_the_hook_whatever_the_shell_sets(folder):
    here = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(folder / "elsewhere"), "PYTHONOPTIMIZE": "2"}
    installing.install(folder, environ={**os.environ, **here})
    tag = sys.implementation.cache_tag
    names = {f"{name}.{tag}.pyc" for name in ("_autogpu_steps", "sitecustomize")}
    assert {path.name for path in folder.rglob("*.pyc")} == names
    assert not (folder / "elsewhere").exists()


def test_uninstall_leaves_the_folder_as_it_was(folder):
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "other.cpython-311.pyc").write_bytes(b"other")
    before = tree(folder)
    installing.install(folder)
    # Another Python with -O writes the first file, and a killed install leaves the second.
    for name in ("__pycache__/_autogpu_hook.cpython-38.opt-1.pyc", ".autogpu.pth.12.tmp"):
        (folder / name).write_bytes(b"")
    assert installing.uninstall(folder)
    assert tree(folder) == before
    for target in (folder, folder / "gone", folder / "__pycache__" / "other.cpython-311.pyc"):
        assert installing.uninstall(target) == ()


def test_failed_uninstall_leaves_no_empty_distribution(folder):
    installing.install(folder)
    (folder / "__pycache__" / "_autogpu_hook.cpython-38.pyc").mkdir()
    compiled = folder / "__pycache__" / "_autogpu_hook.cpython-38.pyc"
    assert problem_of(installing.uninstall, folder) == InstallProblem(
        InstallFault.NOT_REMOVED, compiled, "Is a directory"
    )
    assert all(any(info.iterdir()) for info in installing.distributions(folder))


def test_installed_files_are_readable_for_other_users(folder):
    previous = os.umask(0o022)
    try:
        written = installing.install(folder)
    finally:
        os.umask(previous)
    assert {path.stat().st_mode & 0o777 for path in written} == {0o644}


def test_upgrade_replaces_the_files_of_an_earlier_version(folder):
    installing.install(folder)
    expected = installed(folder)
    (info,) = installing.distributions(folder)
    info.rename(folder / "autogpu_autoload-0.0.1.dist-info")
    (folder / installing.HOOK).write_bytes(b"# autogpu start-up file, version 0.\n")
    stale = folder / "__pycache__" / "_autogpu_hook.cpython-30.pyc"
    stale.write_bytes(b"compiled from version 0")
    linked = folder.parent / "cache-of-a-package-manager"
    os.link(str(folder / installing.HOOK), str(linked))
    installing.install(folder)
    assert installed(folder) == expected
    assert not stale.exists()
    assert linked.read_bytes() == b"# autogpu start-up file, version 0.\n"


@pytest.mark.parametrize("name", ["sitecustomize.py", "_autogpu_steps.py"])
@pytest.mark.parametrize(
    "text",
    ["print('mine')\n", "import os\n# Runs before the autogpu start-up file.\n"],
    ids=["other-code", "mentions-autogpu"],
)
def test_file_of_another_author_is_reported_and_kept(folder, name, text):
    (folder / name).write_text(text)
    before = tree(folder)
    assert problem_of(installing.install, folder) == InstallProblem(InstallFault.NOT_OURS, folder / name)
    assert installing.uninstall(folder) == ()
    assert tree(folder) == before


@pytest.mark.parametrize("installer", ["pip", "uv", None])
def test_files_of_another_installer_are_left_unchanged(folder, installer):
    installing.install(folder)
    (info,) = installing.distributions(folder)
    if installer:
        (info / "INSTALLER").write_text(f"{installer}\n")
    else:
        (info / "INSTALLER").unlink()
    before = tree(folder)
    assert (installing.install(folder), tree(folder)) == ((), before)
    with (folder / installing.SITECUSTOMIZE).open("a") as hook:
        hook.write("# of another version\n")
    before = tree(folder)
    for action in (installing.install, installing.uninstall):
        owner = installer or installing.UNKNOWN_INSTALLER
        assert problem_of(action, folder) == InstallProblem(InstallFault.OTHER_INSTALLER, folder, owner)
    assert tree(folder) == before


@pytest.mark.parametrize("earlier", ["none", "another", "the-same"])
def test_files_whose_hook_does_not_load_are_removed_if_new(folder, earlier):
    if earlier != "none":
        installing.install(folder)
    before = tree(folder)
    if earlier == "another":
        (folder / installing.STEPS).write_bytes(b"# autogpu start-up file, version 0.\n")
    false = shutil.which("false")
    problem = problem_of(installing.install, folder, executable=false)
    assert (problem.fault, problem.path) == (InstallFault.NOT_LOADED, folder / "sitecustomize.py")
    assert (problem.executable, "ended with status 1" in problem.detail) == (false, True)
    assert tree(folder) == (before if earlier == "the-same" else {})


def test_ctrl_c_before_the_hook_is_checked_removes_the_files(folder):
    class Interrupted(dict):
        def items(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        installing.install(folder, environ=Interrupted())
    assert tree(folder) == {}


def test_pth_in_a_folder_that_python_does_not_scan_is_removed(folder):
    problem = problem_of(installing.install, folder, "pth")
    assert problem == InstallProblem(InstallFault.NOT_LOADED, folder / installing.HOOK, executable=sys.executable)
    assert tree(folder) == {}


def test_sitecustomize_later_on_the_path_is_run_too(folder, hidden):
    hidden.write_text("import sys\nsys.path.insert(0, '/added')\nprint('hidden')\n")
    installing.install(folder, environ={**os.environ, "PYTHONPATH": str(hidden.parent)})
    code = (
        "import sys, sitecustomize; print(sitecustomize.__file__); print('_autogpu_hook' in sys.modules)\n"
        "print([p for p in sys.path if p][:3])"
    )
    ran = start(code, folder, hidden.parent)
    lines = ["hidden", str(hidden), "True", str([str(folder), "/added", str(hidden.parent)])]
    assert (ran.stdout.splitlines(), ran.stderr) == (lines, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import gone", "ModuleNotFoundError: No module named 'gone'")],
    ids=["crash", "missing-import"],
)
def test_error_of_the_later_sitecustomize_is_reported_as_by_python(folder, hidden, text, said):
    installing.install(folder)
    hidden.write_text(text)
    ran = start("import sys; print('_autogpu_hook' in sys.modules, sys.path[1])", folder, hidden.parent)
    assert (ran.returncode, ran.stdout) == (0, f"True {folder}\n")
    assert ran.stderr == f"Error in sitecustomize; set PYTHONVERBOSE for traceback:\n{said}\n"


def test_sitecustomize_without_its_second_file_starts_silently(folder):
    installing.install(folder)
    (folder / installing.STEPS).unlink()
    shutil.rmtree(str(folder / "__pycache__"))
    ran = start("pass", folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_missing_folder_is_an_error_with_its_name(tmp_path):
    gone = tmp_path / "gone"
    assert problem_of(installing.install, gone) == InstallProblem(InstallFault.NO_FOLDER, gone)


def test_unwritable_folder_is_an_error_with_its_name():
    problem = problem_of(installing.install, Path("/sys/kernel"))
    assert (problem.fault, problem.path.parent) == (InstallFault.NOT_WRITTEN, Path("/sys/kernel"))


def test_command_prints_the_reason_and_a_remedy(folder, capsys):
    assert frame.run(["install", "--target", str(folder / "gone")]) == 1
    what = f"autogpu: {folder}/gone is not a folder\n"
    assert capsys.readouterr() == ("", f"{what}autogpu: make it first: mkdir -p {folder}/gone\n")
    installing.install(folder)
    (info,) = installing.distributions(folder)
    (info / "INSTALLER").write_text("uv\n")
    assert frame.run(["uninstall", "--target", str(folder)]) == 1
    what = f"autogpu: the start-up files in {folder} belong to uv\n"
    assert capsys.readouterr() == ("", f"{what}autogpu: upgrade or remove autogpu-autoload with uv\n")
