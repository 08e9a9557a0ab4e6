"""autogpu sets itself up once per process, and again in a child that is forked while it does so."""

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


def test_child_forked_while_autogpu_sets_itself_up_has_autogpu(tmp_path):
    # The name is misspelt, so autogpu prints a line while it sets itself up. The program above blocks that print.
    environ = {**os.environ, "AUTOGPU_COUNTT": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "7 True\n", done.stderr


def test_what_a_hook_of_another_version_calls_stays_as_it_is():
    called = (activation.before_import, activation.after_import)
    names = [[*inspect.signature(function).parameters] for function in called]
    assert names == [["framework", "started_with"], ["framework", "module"]]


def test_a_framework_that_only_a_later_hook_knows_is_left_alone(capfd):
    activation.before_import("frameworkofthefuture", None)
    activation.after_import("frameworkofthefuture", activation)
    assert capfd.readouterr() == ("", "")
    assert activation.allocation is None
