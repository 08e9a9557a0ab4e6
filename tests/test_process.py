"""What a process knows of its threads."""

from __future__ import annotations

import threading
import types

from autogpu.process import renewed_in_children


def test_a_lock_is_of_the_kind_that_the_script_has_put_in_the_place_of_threadings(monkeypatch):
    """As gevent and eventlet do: another kind would let all of their threads in at once."""
    monkeypatch.setattr(threading, "RLock", lambda: "a lock of green threads")
    assert renewed_in_children(types.SimpleNamespace()) == "a lock of green threads"
