"""A process that claims GPUs on command: one JSON object per line on stdin, one or more answers on stdout.

Started as a program, by any supported Python and, where the tests are root, as any user: everything is
imported before the user changes, who may not be able to read this checkout.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autogpu import lease as leases
from autogpu.errors import AutoGpuError
from autogpu.lease import folder
from autogpu.lease.snapshot import FolderReader
from autogpu.variables import LEASE
from tests.lease.interrupting import OURS, interrupt, is_cleaning_up


def promised(holders):
    """Bytes by GPU: the sum over jobs of the most that any member of the job claims."""
    most = {}
    for holder in holders:
        for uuid, size in holder.claims.items():
            key = (holder.uid, holder.group or holder.name, uuid)
            most[key] = max(size, most.get(key, 0))
    total = {}
    for (_, _, uuid), size in most.items():
        total[uuid] = total.get(uuid, 0) + size
    return total


def free(uuids, size):
    """Take the first GPU that is neither held nor waited for."""

    def choose(holders, waiters):
        taken = promised(holders)
        for uuid in uuids:
            if uuid not in taken and not any(waiter.demand.could_use(uuid) for waiter in waiters):
                return {uuid: size}
        return None

    return choose


def room(totals, size):
    """Take the first GPU on which there is room; ignore who waits."""

    def choose(holders, waiters):
        taken = promised(holders)
        for uuid, total in totals.items():
            if taken.get(uuid, 0) + size <= total:
                return {uuid: size}
        return None

    return choose


def chooser(command):
    if "gpus" in command:
        return lambda holders, waiters: command["gpus"]
    if "totals" in command:
        return room(command["totals"], command["size"])
    return free(command["free"], command.get("size", 1))


def shown(holder):
    return {
        "name": holder.name,
        "uid": holder.uid,
        "pid": holder.pid,
        "pid_here": holder.pid_here,
        "claims": dict(holder.claims),
        "script": holder.script,
        "is_mine": holder.is_mine,
    }


class Worker:
    def __init__(self, path):
        self.folder = leases.Folder(path, "environment", path.stat().st_uid)
        self.lease = None
        self.keep = []

    def acquire(self, command):
        begin = time.perf_counter()
        problems = []
        choose = chooser(command)

        def told_to_go_on(*seen):
            """With the mutex in hand, as one that is stopped there."""
            if command.pop("stops", False):
                answer({"event": "choosing"})
                sys.stdin.readline()
            return choose(*seen)

        self.lease = leases.acquire_lease(
            self.folder,
            told_to_go_on,
            script=command.get("script", "/home/someone/train.py"),
            group=command.get("group"),
            deadline_s=command.get("deadline_s", 2.0),
            on_problem=problems.append,
        )
        ms = (time.perf_counter() - begin) * 1000
        claims = None if self.lease is None else dict(self.lease.claims)
        return {"claims": claims, "ms": ms, "problems": [problem.what for problem in problems]}

    def wait(self, command):
        def on_wait(state):
            answer({"event": "waiting", "position": state.position, "holders": len(state.holders)})

        self.lease = leases.wait_for_lease(
            self.folder,
            chooser(command),
            demand=leases.Demand(command.get("count", 1), command.get("bytes"), tuple(command.get("free", ()))),
            script="wait.py",
            timeout_s=command.get("timeout_s", 30.0),
            on_wait=on_wait,
            deadline_s=command.get("deadline_s", 2.0),
        )
        return {"claims": dict(self.lease.claims)}

    def relay(self, command):
        """Forks that wait for one GPU; each that gets it gives it back. How many had it, what the others said."""
        reading, writing = os.pipe()
        for _ in range(command["count"]):
            if os.fork():
                continue
            told = b"x"
            try:
                leases.wait_for_lease(
                    self.folder,
                    free(["GPU-0"], 1),
                    demand=leases.Demand(uuids=tuple(command.get("uuids", ()))),
                    script="relay.py",
                    timeout_s=command["timeout_s"],
                ).release()
                told = b"."
            except AutoGpuError as error:
                sys.stderr.write(f"{error.what}\n")
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
        """Stand in line for the lock of a file that is another process's, in a thread, and keep it."""
        descriptor = os.open(str(self.folder.path / command["name"]), os.O_RDONLY)
        threading.Thread(target=fcntl.flock, args=(descriptor, fcntl.LOCK_EX), daemon=True).start()
        self.keep.append(descriptor)
        return {}

    def plant(self, command):
        for name in command["names"]:
            os.close(os.open(str(self.folder.path / name), os.O_CREAT | os.O_WRONLY, 0o644))
        return {}

    def wait_in_thread(self, command):
        seen = threading.Event()

        def run():
            leases.wait_for_lease(
                self.folder,
                free(["GPU-0"], 1),
                demand=leases.Demand(),
                script="wait.py",
                timeout_s=30,
                on_wait=lambda _: seen.set(),
            )

        threading.Thread(target=run, daemon=True).start()
        assert seen.wait(10)
        return {}

    def update(self, command):
        times = command.get("times", 1)
        for claims in command["each"] * times:
            self.lease.update(claims)
        return {"claims": dict(self.lease.claims), "times": times}

    def release(self, command):
        self.lease.release()
        return {}

    def holders(self, command):
        return {"holders": [shown(holder) for holder in leases.snapshot(self.folder).holders]}

    def marker(self, command):
        return {"marker": self.lease.marker(command["environ"])}

    def state(self, command):
        return {"is_alive": self.lease.is_alive, "claims": dict(self.lease.claims)}

    def fork(self, command):
        """A child that lives until it is killed, and tries what must have no effect on its parent's lease."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            if self.lease:
                self.lease.update({"GPU-child": 1})
                self.lease.release()
            mine = [holder.is_mine for holder in leases.snapshot(self.folder).holders]
            os.write(writing, json.dumps(mine).encode())
            os.close(0)
            os.close(1)
            signal.pause()
        return {"child": child, "mine": json.loads(os.read(reading, 1000).decode())}

    def exec(self, command):
        """Another program in the same process, which writes what it finds and sleeps."""
        os.environ[LEASE] = self.lease.marker(os.environ)
        os.execv(sys.executable, [sys.executable, __file__, str(self.folder.path), "--after-exec"])

    def hold_mutex(self, command):
        descriptor = os.open(str(self.folder.path / folder.MUTEX), os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.keep.append(descriptor)
        return {}

    def fork_while_choosing(self, command):
        """Fork while another thread holds the mutex; the child lives on."""
        choosing, go_on = threading.Event(), threading.Event()

        def choose(holders, waiters):
            choosing.set()
            assert go_on.wait(10)
            return {"GPU-0": 1}

        def run():
            self.lease = leases.acquire_lease(self.folder, choose, script="thread.py")

        thread = threading.Thread(target=run)
        thread.start()
        assert choosing.wait(10)
        # A library's fork runs none of Python's hooks; its child comes back to a lock of Python's that stays
        # closed.
        child = os.fork() if command["by"] == "python" else ctypes.CDLL(None).fork()
        if child == 0:
            os.close(0)
            os.close(1)
            signal.pause()
        if command["finish"]:
            go_on.set()
            thread.join()
        return {"child": child}

    def threads(self, command):
        claimed = []

        def run():
            lease = leases.acquire_lease(self.folder, chooser(command), script="thread.py")
            claimed.append(None if lease is None else next(iter(lease.claims)))

        threads = [threading.Thread(target=run) for _ in range(command["count"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"claimed": claimed}

    def close_everything(self, command):
        """What a daemon does when it starts; and its next file gets a number that was ours."""
        os.closerange(3, 1000)
        self.keep.append([os.open("/dev/null", os.O_RDONLY) for _ in range(8)])
        is_alive = self.lease.is_alive
        self.lease.release()
        still_open = 0
        for descriptor in self.keep[-1]:
            os.fstat(descriptor)
            still_open += 1
        return {"is_alive": is_alive, "still_open": still_open}

    def crowd(self, command):
        """Many forks that claim at the same instant, and live until this process is told the next thing."""
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
                except AutoGpuError as error:
                    told = {"error": error.what}
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
            alive = leases.snapshot(self.folder).holders + leases.snapshot(self.folder).waiters
            if alive:
                return {"line": lines, "alive": [one.name for one in alive]}
            # Raises if the mutex is stuck; tidies up.
            leases.acquire_lease(self.folder, lambda *_: None, script="check.py", deadline_s=0.5)
            left = sorted(path.name for path in self.folder.path.iterdir())
            if left != [folder.MUTEX]:
                return {"line": lines, "left": left}
            if os.WIFEXITED(status):
                return {"lines": lines}

    def interrupt_everywhere(self, command):
        """Raise KeyboardInterrupt at each line that ``what`` executes; the process lives on."""

        problems = []
        lines = 0
        while True:
            lines += command.get("step", 1)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    ended = self._traced(command["what"], lines, interrupt)
                    os.write(writing, b"ended" if ended else self.where.encode())
                    signal.pause()
                finally:
                    os._exit(1)
            where = os.read(reading, 1000).decode()
            ended = where == "ended"
            count = len(leases.snapshot(self.folder).holders)
            # What was interrupted while it claimed holds nothing; an update loses nothing.
            if count != (1 if ended or command["what"] == "update" else 0):
                problems.append((where, "holders", count))
            if leases.snapshot(self.folder).waiters:
                problems.append((where, "waiters"))
            try:
                leases.acquire_lease(self.folder, lambda *_: None, script="check.py", deadline_s=0.1)
            except AutoGpuError as error:
                problems.append((where, error.what))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
            if ended:
                return {"lines": lines, "problems": problems}

    def _traced(self, what, stop_at, act):
        """Do ``what`` and act at the given line of ours; whether it ran to its end."""
        seen = 0
        self.where = ""

        def trace(frame, event, _):
            nonlocal seen
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            if event == "line" and not (act is interrupt and is_cleaning_up(frame)):
                seen += 1
                if seen == stop_at:
                    sys.settrace(None)
                    self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    act()
            return trace

        lease = None
        if what == "update":
            lease = leases.acquire_lease(self.folder, lambda *_: {"GPU-0": 1}, script="a.py")
        sys.settrace(trace)
        try:
            if what == "claim":
                leases.acquire_lease(self.folder, lambda *_: {"GPU-0": 1}, script="a.py")
            elif what == "update":
                lease.update({"GPU-1": 2})
            elif what == "wait":
                looks = iter([None])
                leases.wait_for_lease(
                    self.folder,
                    lambda *_: next(looks, {"GPU-0": 1}),
                    demand=leases.Demand(),
                    script="a.py",
                    timeout_s=20,
                    on_wait=lambda _: self.plant({"names": ["job.1.1.00000000"]}),  # as a lease that has ended
                )
            elif what == "timeout":
                try:
                    leases.wait_for_lease(
                        self.folder, lambda *_: None, demand=leases.Demand(), script="a.py", timeout_s=0
                    )
                except leases.WaitTimeout:
                    pass
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(None)
        return True

    def read_twice(self, command):
        """Look at the folder as a reader does, again and again; every kind of thing that was seen."""
        seen = set()
        end = time.monotonic() + command["seconds"]
        looks = 0
        while time.monotonic() < end:
            looks += 1
            with self.folder.opened() as descriptor:
                found = FolderReader(self.folder).read(descriptor, remove_stale=command["remove_stale"])
            seen.add(json.dumps([[h.is_readable, sorted(h.claims.items())] for h in found.holders]))
        return {"seen": sorted(seen), "looks": looks}

    def memory(self, command):
        """Read the folder in a program that has raised Python's recursion limit."""
        sys.setrecursionlimit(10**6)
        return self.holders(command)


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main():
    path = Path(sys.argv[1])
    worker = Worker(path)
    if "--after-exec" in sys.argv:
        held = [shown(holder) for holder in leases.snapshot(worker.folder).holders]
        answer({"holders": held, "parent": leases.ancestor_lease(os.environ, worker.folder) is not None})
    if "--uid" in sys.argv:
        uid = int(sys.argv[sys.argv.index("--uid") + 1])
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if "--umask" in sys.argv:
        os.umask(int(sys.argv[sys.argv.index("--umask") + 1], 8))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answer({"pid": os.getpid()})
    # readline, not iteration: that reads ahead, and a fork would share what was read.
    while True:
        try:
            line = sys.stdin.readline()
            if not line:
                return
            command = json.loads(line)
            told = getattr(worker, command.pop("do"))(command)
        except AutoGpuError as error:
            told = {"error": type(error).__name__, "what": error.what, "remedy": error.remedy}
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt"}
        answer(told)


if __name__ == "__main__":
    main()
