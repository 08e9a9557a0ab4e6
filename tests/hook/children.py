"""A program that starts children in every way, before and after it takes a GPU, and prints the GPU list of each.

Each child runs this file too. Without the argument ``start`` the program prints only its own GPU list. It runs on every
Python that autogpu supports.
"""

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
CHILD = [sys.executable, str(Path(__file__).resolve())]
# With -S, Python reads no start-up file, so the child has no hook.
WITHOUT_HOOK = [sys.executable, "-S", str(Path(__file__).resolve())]


def look():
    """Return CUDA_VISIBLE_DEVICES from ``os.environ``, as scripts read it, and from C, as CUDA reads it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(VISIBLE.encode())
    return [os.environ.get(VISIBLE), None if value is None else value.decode()]


def send(connection):
    connection.send(look())


def run(command, environ=None):
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, timeout=60, check=True)
    return json.loads(done.stdout.decode())


def run_instead(replace):
    """Fork, let ``replace`` turn the child into another program, and return the GPU list that it prints."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        replace()
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = json.loads(answer.read())
    os.waitpid(child, 0)
    return found


def run_method(method):
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=send, args=(sending,))
    child.start()
    found = receiving.recv()
    child.join(60)
    return found


def look_everywhere():
    told = dict(os.environ)
    told[VISIBLE] = os.environ.get(VISIBLE, "0")
    found = {"itself": look()}
    found["env=None"] = run(CHILD)
    found["env=os.environ.copy()"] = run(CHILD, os.environ.copy())
    found["env=dict(os.environ)"] = run(CHILD, dict(os.environ))
    found["os.execv"] = run_instead(lambda: os.execv(CHILD[0], CHILD))
    found["os.execve"] = run_instead(lambda: os.execve(CHILD[0], CHILD, os.environ))
    found["a child of a shell"] = run(["sh", "-c", '"$@"', "sh"] + CHILD)
    for method in ("fork", "spawn", "forkserver"):
        found[method] = run_method(method)
    found["env with get(..., '0')"] = run(CHILD, told)
    found["env with '0'"] = run(CHILD, dict(os.environ, **{VISIBLE: "0"}))
    found["env with ''"] = run(CHILD, dict(os.environ, **{VISIBLE: ""}))
    found["env with AUTOGPU=0"] = run(CHILD, dict(os.environ, AUTOGPU="0"))
    found["without hook, env=None"] = run(WITHOUT_HOOK)
    found["without hook, env=os.environ.copy()"] = run(WITHOUT_HOOK, os.environ.copy())
    found["sh"] = run(["sh", "-c", 'echo "[\\"$CUDA_VISIBLE_DEVICES\\"]"'])
    return found


def main():
    if sys.argv[1:] != ["start"]:
        print(json.dumps(look()))
        return
    from taking import toyflow

    toyflow()
    print(json.dumps(look_everywhere()), flush=True)
    toyflow().take(1 << 20)
    # Stop the fork server, because its environment is older than the claim.
    sys.modules["multiprocessing.forkserver"]._forkserver._stop()
    print(json.dumps(look_everywhere()), flush=True)


if __name__ == "__main__":
    main()
