"""If a script's signal handler raises while autogpu's code runs, the script gets that exception."""

import json

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Number of lines to interrupt, out of thousands that run during the import and the first use of a GPU.
SAMPLES = 60

PROGRAM = """
import json, os, random, signal, sys

class Stop(Exception):
    pass

errors = [TimeoutError("too slow"), SystemExit(7), Stop()]

def handler(number, frame):
    raise error

def is_traced(frame):
    # Our files, and what they call; not TensorFlow's, nor the import system.
    file, caller = frame.f_code.co_filename, frame.f_back
    if "/site-packages/autogpu/" in file or "_autogpu_" in file or file.endswith("pynvml.py"):
        return True
    if "/site-packages/" in file or file.startswith("<frozen importlib"):
        return False
    return caller is not None and caller.f_trace is not None

def trace_lines(act):
    def trace(frame, event, argument):
        if not is_traced(frame):
            return None
        if event == "line":
            act(frame)
        return trace
    sys.settrace(trace)

def work():
    import tensorflow as tf
    tf.zeros([1])

def in_a_fork(function):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.write(writer, json.dumps(function()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return json.loads(told)

def count():
    lines = []
    trace_lines(lambda frame: lines.append(1))
    work()
    sys.settrace(None)
    return len(lines)

def interrupted_at(stop):
    lines, where = [], []
    def act(frame):
        lines.append(1)
        if len(lines) == stop:
            sys.settrace(None)
            where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, handler)
    trace_lines(act)
    try:
        work()
        ended = "nothing was raised"
    except BaseException as raised:
        ended = "" if raised is error else repr(raised)
    sys.settrace(None)
    return ended, *where

lines = in_a_fork(count)
lost = []
for sample in range(SAMPLES):
    stop, error = random.randrange(1, lines), errors[sample % len(errors)]
    ended = in_a_fork(lambda: interrupted_at(stop))
    if ended[0]:
        lost.append(ended)
import tensorflow
print(json.dumps([lines, lost]))
"""


def test_script_gets_what_its_signal_handler_raises(run):
    ran = run(f"SAMPLES = {SAMPLES}\n{PROGRAM}")
    lines, lost = json.loads(ran.stdout)
    assert lines > 5000
    # Only an exception that was lost in a file of autogpu counts. Functions such as os.path.realpath catch exceptions
    # themselves, and a run may have fewer lines than were counted.
    assert [each for each in lost if len(each) > 1 and "autogpu" in each[1]] == []
