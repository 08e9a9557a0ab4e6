"""Process helpers that have to work beside other threads."""

import os
import sys
import threading
import types

from autogpu.process import copy_of, fork_safe_rlock, script_file


class Changing(os._Environ):
    """An environment of which another thread deletes a variable whenever its names are listed."""

    def __init__(self, **values):
        super().__init__(values, str, str, str, str)

    def __iter__(self):
        names = list(super().__iter__())
        self.pop("GONE", None)
        return iter(names)


def test_the_environment_is_copied_while_another_thread_changes_it():
    assert copy_of(Changing(GONE="1", HOME="/")) == {"HOME": "/"}


def test_notebook_kernel_is_not_the_running_script(monkeypatch):
    """A policy beside the kernel's own file, or above it, must not replace the one beside the notebook."""
    monkeypatch.setattr(sys, "argv", [__file__])
    assert script_file() == os.path.realpath(__file__)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    assert script_file() == ""


def test_lock_is_of_the_class_that_the_script_put_in_place_of_rlock(monkeypatch):
    """gevent and eventlet replace ``RLock``. All of their green threads could hold the original at once."""
    monkeypatch.setattr(threading, "RLock", lambda: "a lock of green threads")
    lock: object = fork_safe_rlock(types.SimpleNamespace())
    assert lock == "a lock of green threads"
