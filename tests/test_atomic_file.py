"""A file is replaced in one step, and never through a link."""

import os

from autogpu.atomic_file import remove_leftovers, write_file


def test_link_at_the_temporary_name_is_not_followed(tmp_path):
    (tmp_path / "shadow").write_bytes(b"secret")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(tmp_path / "shadow")
    write_file(tmp_path / "file", b"new", 0o644)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "shadow").read_bytes() == b"secret"
    assert not (tmp_path / "file").is_symlink()


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".file.1.tmp", ".file.22.tmp", ".other.1.tmp", "file"):
        (folder / name).write_bytes(b"")
    remove_leftovers(folder / "file")
    assert {path.name for path in folder.iterdir()} == {".other.1.tmp", "file"}
