"""Setup of autogpu: once per process, and again in a child that is forked during the setup."""

import inspect
import os
import subprocess
import sys

from autogpu import activation

PROGRAM = """
import os, sys, threading
from autogpu import activation

class Stderr:
    def write(self, text):
        reached.set()
        go_on.wait(60)
    def flush(self):
        pass

reached, go_on, real = threading.Event(), threading.Event(), sys.stderr
sys.stderr = Stderr()
thread = threading.Thread(target=activation._begin, args=(None,))
thread.start()
assert reached.wait(60)
child = os.fork()
if not child:
    sys.stderr = real
    os._exit(7 if activation._begin(None) is activation.allocation is not None else 1)
_, status = os.waitpid(child, 0)
go_on.set()
thread.join(60)
print(os.WEXITSTATUS(status), activation.allocation is not None)
"""


def test_child_forked_during_the_setup_of_autogpu_has_autogpu(tmp_path):
    # The name is misspelt, so autogpu prints a line while it sets itself up. The program above blocks that print.
    environ = {**os.environ, "AUTOGPU_COUNTT": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "7 True\n", done.stderr


def test_signatures_that_hooks_of_other_versions_call_do_not_change():
    called = (activation.before_import, activation.after_import)
    names = [[*inspect.signature(function).parameters] for function in called]
    assert names == [["framework", "started_with"], ["framework", "module"]]


def test_framework_unknown_to_this_version_is_left_alone(capfd):
    activation.before_import("frameworkofthefuture", None)
    activation.after_import("frameworkofthefuture", activation)
    assert capfd.readouterr() == ("", "")
    assert activation.allocation is None
