from __future__ import annotations

import grp
import os
import pwd
import struct
import subprocess
import sys
import threading
from pathlib import PosixPath

import pytest

from autogpu.policy import Origin, sources
from autogpu.policy.model import LayerName, Mistake, UnusableFile
from tests.support.problems import in_file, in_variable
from tests.support.processes import in_a_fork

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
COUNT_2 = "[select]\ncount = 2\n"
COUNT_3 = "[select]\ncount = 3\n"


@pytest.mark.parametrize(
    ("files", "script", "folder"),
    [
        pytest.param(["proj", ""], "proj/a/b/train.py", "/", id="nearest-file-above-the-script"),
        pytest.param(["proj", "elsewhere"], "proj/train.py", "elsewhere", id="script-before-the-working-directory"),
        pytest.param(["proj"], "bin/tool", "proj/deep/er", id="working-directory-without-a-file-above-the-script"),
    ],
)
def test_nearest_project_file_counts(workplace, files, script, folder):
    for number, place in enumerate(files):
        workplace.write(workplace.home / place / "autogpu.toml", f"[select]\ncount = {number + 2}\n")
    resolved = workplace.resolve(script=workplace.home / script, working_directory=workplace.home / folder)
    assert (resolved.policy.count, resolved.files) == (2, (workplace.home / files[0] / "autogpu.toml",))


@pytest.mark.parametrize("through", ["home", "link"])
def test_home_is_the_last_folder_searched_for_a_project_file(workplace, tmp_path, through):
    above = workplace.write(workplace.home.parent / "autogpu.toml", "[select]\ncount = 9\n")
    home = workplace.home
    if through == "link":
        home = tmp_path / "link"
        home.symlink_to(workplace.home)
        workplace.autogpu_toml(COUNT_2)
        origin = workplace.resolve({"HOME": str(home)}).settings["select.count"].origin
        assert str(origin) == "~/proj/autogpu.toml:2"
        (workplace.project / "autogpu.toml").unlink()
    assert workplace.resolve({"HOME": str(home)}).policy.count == 1
    own = workplace.write(workplace.home / "autogpu.toml", COUNT_2)
    assert workplace.resolve({"HOME": str(home)}).files == (own,)
    assert workplace.resolve({"HOME": "/nowhere"}, working_directory=above.parent / "x").files == (above,)


def test_autogpu_toml_wins_over_pyproject_toml_beside_it(workplace):
    workplace.pyproject("[tool.autogpu.select]\ncount = 3\n")
    workplace.autogpu_toml(COUNT_2)
    assert workplace.resolve().policy.count == 2


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[tool.black]\nline-length = 100\n", id="without-our-table"),
        pytest.param("[project]\ndependencies = ['autogpu']\n", id="depends-on-autogpu"),
        pytest.param("tool = 'autogpu'\n", id="tool-is-a-text"),
        pytest.param("[project\nautogpu = \n", id="broken-without-our-table"),
        pytest.param("", id="empty-file"),
    ],
)
def test_pyproject_toml_without_our_table_does_not_count(workplace, content):
    above = workplace.write(workplace.home / "autogpu.toml", COUNT_3)
    workplace.pyproject(content)
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.files, resolved.problems) == (3, (above,), ())


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[tool]\nautogpu = {select = {count = 2}}\n", 2),
        ("[tool]\nautogpu.select.count = 2\n", 2),
        ("[ tool . autogpu . select ]\ncount = 2\n", 2),
        ('["tool"."autogpu".select]\ncount = 2\n', 2),
        ("tool.autogpu.select.count = 2\n", 1),
        ("\ntool = {autogpu = {select = {count = 2}}}\n", 2),
        ('[tool]\n"autog\\u0070u".select.count = 2  # autogpu\n', 2),
    ],
)
def test_table_in_pyproject_toml_may_have_any_toml_spelling(workplace, content, line):
    workplace.pyproject(content)
    setting = workplace.resolve().settings["select.count"]
    assert (setting.value, str(setting.origin)) == (2, f"~/proj/pyproject.toml:{line}")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[[tool.autogpu]]\nenabled = false\n", ""),
        ("[tool]\nautogpu = 3\n", "pyproject.toml"),
        ("tool = 3\n", "pyproject.toml"),
        ("[project]\n", "pyproject.toml"),
    ],
)
def test_missing_table_in_pyproject_toml_is_reported(workplace, content, named):
    workplace.pyproject(content)
    assert workplace.problems({"AUTOGPU_POLICY": named}) == [in_file(Mistake.NO_TABLE, place="~/proj/pyproject.toml")]


def broken(file):
    file.write_text("[project\n[tool.autogpu.select]\ncount = 2\n")


def refused_for_its_mode(file):
    file.write_text(COUNT_2)
    file.chmod(0o666)


@pytest.mark.parametrize(
    ("make", "names", "mistake"),
    [
        pytest.param(broken, ["autogpu.toml"], Mistake.NOT_TOML, id="broken-autogpu-toml"),
        pytest.param(broken, ["pyproject.toml"], Mistake.NOT_TOML, id="broken-pyproject"),
        pytest.param(refused_for_its_mode, ["autogpu.toml"], Mistake.FILE_OPEN_TO_ALL, id="refused-for-its-mode"),
        pytest.param(os.mkdir, ["autogpu.toml", "pyproject.toml"], Mistake.NOT_REGULAR, id="folders"),
        pytest.param(os.mkfifo, ["autogpu.toml", "pyproject.toml"], Mistake.NOT_REGULAR, id="named-pipes"),
    ],
)
def test_ignored_file_is_reported_and_hides_no_file_further_up(workplace, make, names, mistake):
    above = workplace.write(workplace.home / "autogpu.toml", COUNT_3)
    for name in names:
        make(workplace.project / name)
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.files) == (3, (above,))
    assert [(each.mistake, each.origin.place) for each in resolved.problems] == [(mistake, f"~/proj/{names[0]}")]


def answered(ask):
    """Return the answer of ``ask`` in a list, which is empty if ``ask`` blocks for 10 s."""
    answers = []
    reader = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    reader.start()
    reader.join(10)
    return answers


def test_file_replaced_by_a_pipe_while_it_is_opened_never_blocks(workplace):
    class Swapping(PosixPath):
        def stat(self, **arguments):
            seen = super().stat(**arguments)
            self.unlink()
            os.mkfifo(str(self))
            return seen

    def read():
        with pytest.raises(UnusableFile) as refused:
            sources.read_file(Swapping(workplace.autogpu_toml(COUNT_2)), judge=False)
        return refused.value.mistake

    assert answered(read) == [Mistake.NOT_REGULAR]


@pytest.mark.parametrize("where", ["relative", "absolute", "tilde"])
def test_autogpu_policy_is_the_path_of_the_project_file(workplace, where):
    workplace.autogpu_toml(COUNT_2)
    named = workplace.write(workplace.home / "other" / "gpu.toml", COUNT_3)
    name = {"relative": "../other/gpu.toml", "absolute": str(named), "tilde": "~/other/gpu.toml"}[where]
    resolved = workplace.resolve({"AUTOGPU_POLICY": name}, script=workplace.script)
    assert (resolved.policy.count, resolved.problems) == (3, ())
    assert [file.resolve() for file in resolved.files] == [named]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        pytest.param(os.devnull, None, id="dev-null"),
        pytest.param("missing.toml", "~/proj/missing.toml", id="no-file"),
        pytest.param("a\0b", "~/proj/a\\x00b", id="null-byte-in-the-path"),
    ],
)
def test_autogpu_policy_disables_the_search_even_without_a_file(workplace, name, missing):
    workplace.autogpu_toml(COUNT_2)
    resolved = workplace.resolve({"AUTOGPU_POLICY": name})
    assert resolved.policy.count == 1
    problems = (in_variable(Mistake.NO_FILE, "AUTOGPU_POLICY", written=missing),) if missing else ()
    assert (resolved.problems, resolved.files) == (problems, ())


def test_user_file_is_not_also_read_as_a_project_file(workplace):
    file = workplace.user(COUNT_2)
    resolved = workplace.resolve(working_directory=file.parent)
    assert (resolved.files, resolved.settings["select.count"].origin.layer) == ((file,), LayerName.USER)


@pytest.mark.parametrize(
    ("place", "mode", "owner", "group", "mistake"),
    [
        pytest.param("file", 0o666, -1, -1, Mistake.FILE_OPEN_TO_ALL, id="file-writable-by-all"),
        pytest.param("folder", 0o777, -1, -1, Mistake.FOLDER_OPEN_TO_ALL, id="folder-writable-by-all"),
        pytest.param("folder", 0o1777, -1, -1, Mistake.FOLDER_OPEN_TO_ALL, id="sticky-folder-writable-by-all"),
        pytest.param("file", 0o644, STRANGER, 0, Mistake.FILE_OF_OTHERS, id="file-of-a-stranger", marks=as_root),
        pytest.param("folder", 0o755, STRANGER, 0, Mistake.FOLDER_OF_OTHERS, id="strangers-folder", marks=as_root),
        pytest.param("file", 0o664, 0, STRANGER, Mistake.FILE_OPEN_TO_GROUP, id="shared-group", marks=as_root),
        pytest.param("folder", 0o775, 0, STRANGER, Mistake.FOLDER_OPEN_TO_GROUP, id="groups-folder", marks=as_root),
    ],
)
@pytest.mark.parametrize("name", ["autogpu.toml", "pyproject.toml"])
def test_project_file_that_others_can_write_is_refused(workplace, place, mode, owner, group, mistake, name):
    text = COUNT_2 if name == "autogpu.toml" else "[tool.autogpu.select]\ncount = 2\n"
    file = workplace.write(workplace.project / name, text)
    changed = file if place == "file" else workplace.project
    os.chown(changed, owner, group)
    changed.chmod(mode)
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.files) == (1, ())
    number = str(STRANGER) if STRANGER in (owner, group) else ""
    assert resolved.problems == (in_file(mistake, place=f"~/proj/{name}", written=str(file), detail=number),)


LOOKS = """
import sys
from autogpu.policy.sources import *
_, (mistake, number) = read_file(Path(sys.argv[1]), judge=True)
print(mistake.name, number)
"""


@as_root
def test_strangers_file_is_refused_in_a_user_namespace_without_users(workplace):
    found = workplace.write(workplace.home / "proj" / "autogpu.toml", COUNT_2)
    for place in (found, found.parent):
        os.chown(str(place), STRANGER, STRANGER)
    command = ["unshare", "--user", sys.executable, "-c", LOOKS, str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespace can be made: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("FILE_OF_OTHERS 65534\n", "")


def test_refused_file_counts_if_autogpu_policy_is_its_path(workplace):
    file = workplace.autogpu_toml(COUNT_2)
    file.chmod(0o666)
    resolved = workplace.resolve({"AUTOGPU_POLICY": str(file)})
    assert (resolved.policy.count, resolved.problems) == (2, ())


def test_refused_pyproject_toml_without_our_table_is_no_problem(workplace):
    workplace.pyproject("[project]\ndependencies = ['autogpu']\n").chmod(0o666)
    assert workplace.problems() == []


@as_root
def test_roots_project_file_counts_for_every_user(workplace):
    workplace.autogpu_toml(COUNT_2)
    for folder in (workplace.project, *workplace.project.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)

    def as_a_stranger():
        os.setuid(STRANGER)
        return workplace.resolve().policy.count

    # Import all modules before the fork: only root may read a Python in root's home.
    assert workplace.resolve().policy.count == 2
    assert in_a_fork(as_a_stranger) == 2


def own_group_is_private() -> bool:
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(os.getegid())
    except KeyError:
        return False
    return me.pw_name == group.gr_name and me.pw_gid == group.gr_gid and set(group.gr_mem) <= {me.pw_name}


needs_private_group = pytest.mark.skipif(not own_group_is_private(), reason="this account's group is not its own")


@needs_private_group
def test_file_writable_by_the_owners_private_group_is_trusted(workplace):
    workplace.autogpu_toml(COUNT_2).chmod(0o664)
    workplace.project.chmod(0o775)
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())


@needs_private_group
def test_file_that_an_access_control_list_makes_writable_is_refused(workplace):
    file = workplace.autogpu_toml(COUNT_2)
    owner, user, group, mask, other, nobody = 1, 2, 4, 16, 32, 2**32 - 1
    entries = [(owner, 6, nobody), (user, 6, STRANGER), (group, 4, nobody), (mask, 6, nobody), (other, 4, nobody)]
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(str(file), "system.posix_acl_access", content)
    except (AttributeError, OSError):
        pytest.skip("this file system has no access control lists")
    assert file.stat().st_mode & 0o777 == 0o664
    wrong = in_file(Mistake.FILE_OPEN_TO_GROUP, written=str(file), detail=str(os.getegid()))
    assert workplace.problems() == [wrong]


def test_link_counts_as_autogpu_policy_but_is_refused_if_found(workplace, tmp_path):
    target = workplace.write(tmp_path / "target" / "real.toml", COUNT_2)
    link = workplace.project / "autogpu.toml"
    link.symlink_to(target)
    assert workplace.resolve({"AUTOGPU_POLICY": str(link)}).policy.count == 2
    assert workplace.resolve().policy.count == 1
    assert workplace.problems() == [in_file(Mistake.LINK, written=str(link))]


def test_user_file_that_is_a_link_counts(workplace, tmp_path):
    target = workplace.write(tmp_path / "dotfiles" / "gpu.toml", COUNT_2)
    user_file = workplace.home / ".config" / "autogpu" / "autogpu.toml"
    user_file.parent.mkdir(parents=True)
    user_file.symlink_to(target)
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())
    assert str(resolved.settings["select.count"].origin) == "~/.config/autogpu/autogpu.toml:2"


def test_dangling_link_is_no_problem(workplace):
    (workplace.project / "autogpu.toml").symlink_to("missing")
    (workplace.home / "autogpu.toml").symlink_to("autogpu.toml")
    assert workplace.problems() == []


def test_found_file_counts_on_systems_without_file_owners(workplace, monkeypatch):
    workplace.autogpu_toml(COUNT_2).chmod(0o666)
    monkeypatch.delattr(os, "geteuid")
    assert workplace.resolve().policy.count == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("layer", ["project", "user"])
def test_file_without_read_permission_is_one_problem(workplace, layer):
    file = workplace.autogpu_toml(COUNT_2) if layer == "project" else workplace.user(COUNT_2)
    file.chmod(0)
    place = f"~/{file.relative_to(workplace.home)}"
    (problem,) = workplace.problems()
    assert (problem.mistake, problem.detail) == (Mistake.UNREADABLE, "Permission denied")
    assert problem.origin == Origin(LayerName(layer), place)
