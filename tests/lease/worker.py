"""A process that claims GPUs on command: one JSON object per line on stdin, one or more answers on stdout.

Tests start it as a program, with any supported Python. If the tests run as root, it can change to any user. It imports
everything before that, because the other user may not be able to read this checkout.
"""

import ctypes
import dis
import fcntl
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autogpu import lease as leases
from autogpu.frozen import replace
from autogpu.lease import GaveUp, queue
from autogpu.lease.folder import FolderOrigin
from autogpu.lease.snapshot import FolderReader
from autogpu.process import with_ancestors
from autogpu.variables import LEASE
from tests.lease.choosers import chooser, free, wait_for_claims
from tests.lease.interrupts import OURS, cleaning_lines, interrupt, is_cleaning_up, locked_files

# The defaults are 1 s and 2 s, too slow for a test.
queue.LOOK_S, queue.READ_S = 0.1, 0.2


def shown(holder):
    names = ("name", "uid", "pid", "pid_here", "script", "is_mine")
    return {**{name: getattr(holder, name) for name in names}, "claims": dict(holder.claims)}


class Worker:
    def __init__(self, path):
        self.folder = leases.Folder(path, FolderOrigin.ENVIRONMENT, path.stat().st_uid)
        self.lease = None
        self.keep = []

    def acquire(self, command):
        choose = chooser(command)

        def told_to_go_on(*seen):
            """If ``stops`` is set, pause inside the mutex until the test sends a line."""
            if command.pop("stops", False):
                answer({"event": "choosing"})
                sys.stdin.readline()
            return choose(*seen)

        self.keep.append(self.lease)
        self.lease = leases.acquire_lease(
            leases.Lease(self._folder_of(command), "/home/someone/train.py", group=command.get("group", "")),
            told_to_go_on,
        )
        if self.lease is None:
            return {"claims": None, "problem": None}
        problem = self.lease.problem
        told = {"claims": dict(self.lease.claims), "problem": problem and problem.fault.name}
        return {**told, "holder": problem.holder} if problem else told

    def _folder_of(self, command):
        return replace(self.folder, patience_s=command.get("patience_s", 2.0))

    def wait(self, command):
        def on_wait(state):
            answer({"event": "waiting", "position": state.position})

        self.lease = wait_for_claims(
            leases.Lease(self._folder_of(command), "wait.py"),
            chooser(command),
            demand=leases.Demand(command.get("count", 1), command.get("bytes"), tuple(command.get("free", ()))),
            timeout_s=command.get("timeout_s", 30.0),
            on_wait=on_wait,
        )
        return {"claims": dict(self.lease.claims)}

    def relay(self, command):
        """Fork processes that wait for one GPU and release it at once. Return how many of them held it."""
        reading, writing = os.pipe()
        for _ in range(command["count"]):
            if os.fork():
                continue
            told = b"x"
            try:
                wait_for_claims(
                    leases.Lease(self.folder, "relay.py"),
                    free(["GPU-0"], 1),
                    demand=leases.Demand(),
                    timeout_s=command["timeout_s"],
                ).release()
                told = b"."
            except (leases.LeaseUnavailable, GaveUp) as error:
                sys.stderr.write(f"{error}\n")
            finally:
                os.write(writing, told)
                os._exit(0)
        told = b""
        while len(told) < command["count"]:
            told += os.read(reading, 65536)
        for _ in range(command["count"]):
            os.wait()
        return {"served": told.count(b".")}

    def wait_for_lock(self, command):
        """Wait in a thread for the lock of another process's file, and keep that lock."""
        descriptor = os.open(str(self.folder.path / command["name"]), os.O_RDONLY)
        threading.Thread(target=fcntl.flock, args=(descriptor, fcntl.LOCK_EX), daemon=True).start()
        self.keep.append(descriptor)
        return {}

    def plant(self, command):
        for name in command["names"]:
            os.close(os.open(str(self.folder.path / name), os.O_CREAT | os.O_WRONLY, 0o644))
        return {}

    def plant_ticket(self, command):
        """Put a locked ticket of any name into the queue, as a hostile user could."""
        descriptor = os.open(str(self.folder.path / command["name"]), os.O_CREAT | os.O_RDWR, 0o644)
        leases.locks.own(descriptor)
        os.write(descriptor, json.dumps({"v": 1, "pid": os.getpid(), "count": 1, "uuids": []}).encode())
        self.keep.append(descriptor)
        return {}

    def wait_in_thread(self, command):
        seen = threading.Event()

        def run():
            wait_for_claims(
                leases.Lease(self.folder, "wait.py"),
                free(["GPU-0"], 1),
                demand=leases.Demand(),
                timeout_s=30,
                on_wait=lambda _: seen.set(),
            )

        threading.Thread(target=run, daemon=True).start()
        assert seen.wait(10)
        return {}

    def holders(self, command):
        return {"holders": [shown(holder) for holder in leases.snapshot(self.folder).holders]}

    def unreadable(self, command):
        found = leases.snapshot(self.folder).unreadable
        return {"unreadable": [[file.name, file.uid, file.error.strerror] for file in found]}

    def marker(self, command):
        environ: dict[str, str] = {}
        self.lease.mark_children(environ, command["visible"])
        return {"marker": environ[LEASE]}

    def fork(self, command):
        """Fork a child that lives until it is killed. It releases its copy of the lease, which must have no effect."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            if self.lease:
                self.lease.release()
            mine = [holder.is_mine for holder in leases.snapshot(self.folder).holders]
            os.write(writing, json.dumps(mine).encode())
            os.close(0)
            os.close(1)
            signal.pause()
        return {"child": child, "mine": json.loads(os.read(reading, 1000).decode())}

    def exec(self, command):
        """Run this program again in this process. It first reports all holders and whether it has a parent lease."""
        self.lease.mark_children(os.environ, os.environ.get("CUDA_VISIBLE_DEVICES"))
        os.execv(sys.executable, [sys.executable, __file__, str(self.folder.path), "--after-exec"])

    def hold_mutex(self, command):
        descriptor = os.open(str(self.folder.path), os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH if command.get("is_shared") else fcntl.LOCK_EX)
        self.keep.append(descriptor)
        return {}

    def fork_while_choosing(self, command):
        choosing, go_on = threading.Event(), threading.Event()

        def choose(holders, waiters):
            choosing.set()
            assert go_on.wait(10)
            return {"GPU-0": 1}

        def run():
            self.lease = leases.acquire_lease(leases.Lease(self.folder, "thread.py"), choose)

        thread = threading.Thread(target=run)
        thread.start()
        assert choosing.wait(10)
        # A fork by a library skips Python's fork hooks. Its child hangs on an interpreter lock that nobody releases.
        child = os.fork() if command["by"] == "python" else ctypes.CDLL(None).fork()
        if child == 0:
            os.close(0)
            os.close(1)
            signal.pause()
        if command["finish"]:
            go_on.set()
            thread.join()
        return {"child": child}

    def close_everything(self, command):
        """Close all descriptors, as a daemon does when it starts. Its next files get the numbers of the closed ones."""
        os.closerange(3, 1000)
        self.keep.append([os.open("/dev/null", os.O_RDONLY) for _ in range(8)])
        self.lease.release()
        return {"still_open": len([os.fstat(descriptor) for descriptor in self.keep[-1]])}

    def crowd(self, command):
        """Fork processes that claim at the same instant and then live until they are killed."""
        start_reading, start_writing = os.pipe()
        reading, writing = os.pipe()
        children = []
        for _ in range(command["count"]):
            child = os.fork()
            if child == 0:
                os.close(start_writing)
                os.read(start_reading, 1)
                try:
                    told = self.acquire(command)
                except leases.LeaseUnavailable as error:
                    told = {"error": str(error)}
                os.write(writing, (json.dumps(told) + "\n").encode())
                signal.pause()
            children.append(child)
        os.close(start_writing)
        told = b""
        while told.count(b"\n") < len(children):
            told += os.read(reading, 65536)
        return {"children": children, "told": [json.loads(line) for line in told.decode().splitlines()]}

    def reap(self, command):
        for child in command["children"]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return {}

    def die_everywhere(self, command):
        """Kill forks of this process with SIGKILL, one at each line that ``what`` executes."""
        lines = 0
        while True:
            lines += command.get("step", 1)
            child = os.fork()
            if child == 0:
                try:
                    self._traced(command["what"], lines, lambda: os.kill(os.getpid(), signal.SIGKILL))
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            problems = self._left_over()
            # _left_over() has removed stale files, but no hidden ones. A hidden file would add lines to the next run.
            for hidden in self.folder.path.glob(".*"):
                hidden.unlink()
            problems += sorted(path.name for path in self.folder.path.iterdir())
            if problems:
                return {"line": lines, "problems": problems}
            if os.WIFEXITED(status):
                return {"lines": lines}

    def interrupt_everywhere(self, command):
        """Raise KeyboardInterrupt at each line that ``what`` executes; the process lives on."""
        problems = []
        lines = 0
        for file in Path(OURS).glob("*.py"):
            cleaning_lines(str(file))  # fill the cache here, not in each child
        while True:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    ended = self._traced(command["what"], lines + command.get("step", 1), interrupt)
                    os.write(writing, json.dumps([ended, self.lines, self.where]).encode())
                    signal.pause()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(writing)
            ended, lines, where = json.loads(os.read(reading, 1000).decode())
            # An interrupted claim holds nothing. Python drops an exception in a __del__,
            # so a claim that is interrupted there succeeds.
            left = self._left_over(1 if ended else 0)
            problems += [[where, *left]] if left else []
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            if not where:
                return {"lines": lines, "problems": problems}

    def interrupt_at_each_opcode(self, command):
        """Take and free the mutex repeatedly. Raise KeyboardInterrupt one opcode later each time.

        Only opcodes before which Python 3.7 and 3.8 run signal handlers count.
        """
        before, opcodes, where = locked_files(), 0, "begin"
        while where and locked_files() == before:
            opcodes += 1
            where = self._interrupt_mutex_at(opcodes, command["body_raises"])
        return {"opcodes": opcodes, "leaks_at": where}

    def _interrupt_mutex_at(self, stop_at, body_raises):
        """Return the line that was interrupted; ``""`` if the mutex needs fewer opcodes."""
        opcodes, where = 0, ""

        def trace(frame, event, _):
            nonlocal opcodes, where
            if not frame.f_code.co_filename.startswith(OURS):
                return trace
            frame.f_trace_opcodes = True
            opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            # Python 3.7 and 3.8 run no signal handler before these two. Newer versions run them at fewer opcodes.
            if event == "opcode" and opcode not in {"SETUP_FINALLY", "SETUP_WITH"}:
                opcodes += 1
                if opcodes == stop_at:
                    sys.settrace(None)
                    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with self.folder.locked():
                if body_raises:
                    raise ValueError
        except (KeyboardInterrupt, ValueError):
            pass
        finally:
            sys.settrace(None)
        return where

    def interrupt_at_random(self, command):
        """Let a timer interrupt claims, waits, releases and snapshots at random moments; the process lives on."""
        problems, interrupted, end = [], 0, time.monotonic() + command["longest_s"]

        def claim():
            self._claim().release()

        def wait():
            self._wait().release()

        def look():
            leases.snapshot(self.folder)

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for act in (claim, wait, look):
            act()
        before = locked_files()
        while interrupted < command["count"] and time.monotonic() < end:
            act = random.choice((claim, claim, wait, look))
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 0.02 if act is wait else 0.002))
                try:
                    act()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            found = leases.snapshot(self.folder)
            left = [each.name for each in (*found.holders, *found.waiters)]
            left += ["locks"] * (locked_files() - before)
            if left:
                problems.append([act.__name__, *left])
                gc.collect()
                before = locked_files()
        return {"interrupted": interrupted, "problems": problems + self._left_over()}

    def _claim(self):
        return leases.acquire_lease(leases.Lease(self.folder, "a.py"), lambda *_: {"GPU-0": 1})

    def _wait(self, timeout_s=20):
        """Wait in the queue because the first choice is ``None``, then claim. With ``timeout_s=0`` time out instead."""
        looks = iter([None])
        choose = lambda *_: next(looks, {"GPU-0": 1})  # noqa: E731
        wanted = leases.Lease(self.folder, "a.py")
        return wait_for_claims(wanted, choose, demand=leases.Demand(), timeout_s=timeout_s)

    def _left_over(self, count=0):
        """Remove stale files. Return the problems: a stuck mutex, or not exactly ``count`` leases and tickets."""
        found = leases.snapshot(self.folder)
        names = [each.name for each in (*found.holders, *found.waiters)]
        with replace(self.folder, patience_s=0.5).locked() as (descriptor, problem):
            FolderReader().read(descriptor, remove_stale=True)
        problems = [str(problem)] if problem else []
        return problems + ([f"{len(found.holders)} holders: {names}"] if len(names) != count else [])

    def _traced(self, what, stop_at, act):
        """Run ``what``, and call ``act`` before line number ``stop_at`` of the lines that the lease package executes.

        Return False if ``act`` interrupted ``what``.
        An interrupt inside a ``finally`` or ``except`` block is put off until after the block.
        """
        self.lines = 0
        self.where = ""

        def trace(frame, event, _):
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            if event == "line":
                self.lines += 1
                if self.lines >= stop_at and not (act is interrupt and is_cleaning_up(frame)):
                    sys.settrace(None)
                    self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    act()
            return trace

        sys.settrace(trace)
        try:
            self.lease = self._claim() if what == "claim" else self._wait(0 if what == "timeout" else 20)
        except KeyboardInterrupt as error:
            self.keep.append(error)  # as a notebook does; the traceback keeps all its frames alive
            return False
        except GaveUp:
            pass
        finally:
            sys.settrace(None)
        return True


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def fork_for_each_line():
    """Fork for each line of stdin. Return in the child, with the arguments and standard streams that the line names."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            files = [os.open(file, os.O_WRONLY if end else os.O_RDONLY) for end, file in enumerate(order["files"])]
            answer(os.getpid())
            for descriptor, file in enumerate(files):
                os.dup2(file, descriptor)
                os.close(file)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115  (the old stdin has read ahead)
            sys.argv[1:] = order["arguments"]
            return
    sys.exit()


def main():
    if sys.argv[1:] == ["--forks"]:
        fork_for_each_line()
    path = Path(sys.argv[1])
    worker = Worker(path)
    if "--after-exec" in sys.argv:
        held = [shown(holder) for holder in leases.snapshot(worker.folder).holders]
        parent = leases.ancestor_lease(os.environ, leases.snapshot(worker.folder).holders, with_ancestors())
        answer({"holders": held, "parent": parent is not None})
    if "--uid" in sys.argv:
        uid = int(sys.argv[sys.argv.index("--uid") + 1])
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if "--umask" in sys.argv:
        os.umask(int(sys.argv[sys.argv.index("--umask") + 1], 8))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answer({"pid": os.getpid()})
    # readline, because iteration reads ahead, and a fork would inherit the lines that were read.
    while True:
        try:
            line = sys.stdin.readline()
            if not line:
                return
            command = json.loads(line)
            told = getattr(worker, command.pop("do"))(command)
        except leases.LeaseUnavailable as error:
            told = {"error": "LeaseUnavailable", "fault": error.problem.fault.name, "number": error.problem.number}
        except GaveUp:
            told = {"error": "GaveUp"}
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt"}
        answer(told)


if __name__ == "__main__":
    main()
