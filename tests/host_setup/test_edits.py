"""The planned changes to a host's files and their undo, compared byte for byte."""

import subprocess

import pytest

from autogpu.host import edits
from autogpu.host.model import HostFault, HostProblem
from autogpu.host.pythons import BasePython

FOLDER = "/usr/local/lib/autogpu"


@pytest.fixture
def root(tmp_path):
    for name in ("etc/profile.d", "etc/environment.d", "etc/security", "usr/lib/python3.9", "etc/python3.11"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/security/pam_env.conf").write_bytes(b"# of the host\n")
    (tmp_path / "etc/python3.11/sitecustomize.py").write_bytes(b"import debians\n")
    (tmp_path / "usr/lib/python3.11").mkdir()
    link = tmp_path / "usr/lib/python3.11/sitecustomize.py"
    link.symlink_to("../../../etc/python3.11/sitecustomize.py")
    return tmp_path


def planned(root, **options):
    pythons = [BasePython("", f"3.{n}", f"cpython-3{n}", root / f"usr/lib/python3.{n}") for n in (9, 11)]
    return edits.plan(root, pythons, **options)


def carry_out(plan):
    for edit in plan.edits:
        if edit.after is None:
            edit.path.unlink()
        else:
            edit.path.write_bytes(edit.after)


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_each_file_is_changed_once_and_restored_to_the_byte(root):
    before = files(root)
    plan = planned(root)
    assert {str(edit.path.relative_to(root)) for edit in plan.edits} == {
        "etc/profile.d/autogpu.sh",
        "etc/environment.d/60-autogpu.conf",
        "etc/security/pam_env.conf",
        "etc/python3.11/sitecustomize.py",
        "usr/lib/python3.9/sitecustomize.py",
    }
    carry_out(plan)
    assert (planned(root).edits, planned(root).left_alone) == ((), ())
    carry_out(planned(root, is_undo=True))
    assert files(root) == before


@pytest.mark.parametrize("text", [b"", b"one\n", b"one", b"one\n\n", b"# begin\nwords\r\n"])
def test_block_is_added_once_and_removed_to_the_byte(text):
    once = edits.with_block(text, b"ours\n")
    assert edits.with_block(once, b"ours\n") == once
    assert edits.undone(edits.with_block(once, b"of a later version\n")) == text
    # Lines that the administrator adds later must stay.
    assert edits.undone(once + b"more\n") == text + b"more\n"
    assert [line for line in once.splitlines() if line == b"ours"] == [b"ours"]


def test_files_of_other_programs_are_left_alone_and_reported(root):
    own = {"etc/profile.d/autogpu.sh": b"mine\n", "usr/lib/python3.9/sitecustomize.py": b"print('mine')\n"}
    for name, text in own.items():
        (root / name).write_bytes(text)
    (root / "etc/security/pam_env.conf").write_bytes(b"PYTHONPATH DEFAULT=/mine\n")
    before = files(root)
    plan = planned(root)
    assert plan.left_alone == (
        HostProblem(HostFault.NOT_OURS, f"{root}/etc/profile.d/autogpu.sh"),
        HostProblem(HostFault.SETS_PYTHONPATH, f"{root}/etc/security/pam_env.conf"),
        HostProblem(HostFault.NOT_OURS, f"{root}/usr/lib/python3.9/sitecustomize.py"),
    )
    carry_out(plan)
    carry_out(planned(root, is_undo=True))
    assert files(root) == before


@pytest.mark.parametrize("number", range(5))
def test_later_change_of_a_file_is_found(root, number):
    carry_out(planned(root))
    path = planned(root).places[number]
    path.write_bytes(path.read_bytes().replace(b"autogpu", b"other"))
    plan = planned(root)
    assert path in {edit.path for edit in plan.edits} or str(path) == plan.left_alone[0].path


def test_undo_removes_the_start_up_file_of_an_uninstalled_python(root):
    carry_out(planned(root))
    recorded = [str(root / "usr/lib/python3.9/sitecustomize.py")]
    carry_out(edits.plan(root, [], is_undo=True, base_files=recorded))
    assert not (root / "usr/lib/python3.9/sitecustomize.py").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", FOLDER),
        ("/mine", f"/mine:{FOLDER}"),
        (f"/mine:{FOLDER}:/theirs", f"/mine:{FOLDER}:/theirs"),
        (FOLDER, FOLDER),
    ],
)
def test_login_appends_the_folder_once_without_an_empty_element(root, before, after):
    carry_out(planned(root))
    script = f'. {root}/etc/profile.d/autogpu.sh; . {root}/etc/profile.d/autogpu.sh; printf %s "$PYTHONPATH"'
    environ = {"PYTHONPATH": before} if before else {}
    done = subprocess.run(["sh", "-uc", script], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (after, "")


def test_dangling_link_of_debian_is_left_alone(root):
    (root / "etc/python3.11/sitecustomize.py").unlink()
    problem = HostProblem(HostFault.NO_TARGET, f"{root}/etc/python3.11/sitecustomize.py")
    assert planned(root).left_alone == (problem,)


def test_folder_in_place_of_a_file_is_left_alone(root):
    (root / "etc/profile.d/autogpu.sh").mkdir()
    assert planned(root).left_alone == (HostProblem(HostFault.NOT_REGULAR, f"{root}/etc/profile.d/autogpu.sh"),)


def test_file_in_a_folder_that_others_can_change_is_left_alone(root):
    (root / "usr/lib/python3.9").chmod(0o777)
    problem = HostProblem(HostFault.PARENT_OPEN_TO_OTHERS, f"{root}/usr/lib/python3.9/sitecustomize.py")
    assert planned(root).left_alone == (problem,)
