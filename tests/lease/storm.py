"""Processes of one user that claim, hold, wait and release at random, until each is killed at a random moment.

A test starts this program with one JSON argument, such as the folder and the number of kills. Root can start it as any
user. It prints one JSON object: how many processes were killed in each state, and the failures after a kill.
"""

import json
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autogpu import lease as leases
from autogpu.lease.folder import FolderOrigin
from tests.lease.choosers import room, wait_for_claims

DOING = ("starting", "choosing", "holding", "giving back", "waiting")

# A process acts as soon as it has started, and few of its actions take longer than this.
LONGEST_LIFE_S = 0.03

# On a busy machine a living process may keep the mutex for seconds. A killed process frees it at once.
PATIENCE_S = 60.0


def act(folder, totals, dice, say):
    say("starting")
    while True:
        size = dice.randint(1, max(totals.values()))
        choose = room(totals, size)
        if dice.random() < 0.8:
            say("choosing")
            lease = leases.acquire_lease(leases.Lease(folder, "storm.py"), choose)
        else:
            say("waiting")
            demand = leases.Demand(1, size, tuple(totals))
            lease = wait_for_claims(leases.Lease(folder, "storm.py"), choose, demand=demand, timeout_s=3600)
        if lease is None:
            continue
        say("holding")
        time.sleep(dice.random() * LONGEST_LIFE_S / 2)
        say("giving back")
        lease.release()


def wrong_after(folder, pid):
    """Return the failures after the end of ``pid``: no claim is possible, a stuck mutex, a live lease or ticket."""
    try:
        lease = leases.acquire_lease(leases.Lease(folder, "check.py"), lambda *_: {"GPU-x": 1})
        found = leases.snapshot(folder)
        lease.release()
    except leases.LeaseUnavailable as error:
        return [f"the next one can't choose: {error}"]
    wrong = [f"the mutex can't be had: {lease.problem}"] if lease.problem else []
    wrong += [f"its lease is alive: {one.name}" for one in found.holders if one.pid == pid]
    return wrong + [f"it stands in the queue: {one.name}" for one in found.waiters if one.pid == pid]


def main():
    order = json.loads(sys.argv[1])
    path = Path(order["folder"])
    if order["uid"] is not None:
        os.setgroups([])
        os.setgid(order["uid"])
        os.setuid(order["uid"])
    folder = leases.Folder(path, FolderOrigin.ENVIRONMENT, path.stat().st_uid, PATIENCE_S)
    dice = random.Random(order["seed"])
    board = mmap.mmap(-1, order["at_once"])
    killed = dict.fromkeys(DOING, 0)
    wrong = []
    living = {}

    def start(slot):
        seed = dice.random()
        child = os.fork()
        if child == 0:

            def say(doing):
                board[slot] = DOING.index(doing)

            try:
                act(folder, order["totals"], random.Random(seed), say)
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
            finally:
                os._exit(1)
        living[slot] = child

    for slot in range(order["at_once"]):
        start(slot)
    for _ in range(order["kills"]):
        time.sleep(dice.random() * LONGEST_LIFE_S / order["at_once"])
        slot = dice.choice(sorted(living))
        pid = living.pop(slot)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed[DOING[board[slot]]] += 1
        if not os.WIFSIGNALED(status):
            wrong.append(f"pid {pid} ended by itself")
        wrong += wrong_after(folder, pid)
        start(slot)
    for pid in living.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    wrong += wrong_after(folder, 0)
    sys.stdout.write(json.dumps({"killed": killed, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main()
