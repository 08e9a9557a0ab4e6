"""Hundreds of processes of two users are killed at random. No GPU is overbooked, no claim or stuck mutex is left."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autogpu.frozen import replace
from autogpu.lease import Lease, acquire_lease
from tests.lease.conftest import ALICE, BOB, TIMEOUT_S, holders, waiters
from tests.support.live_jobs import is_owned

KILLS = int(os.environ.get("STORM_KILLS", "1000"))
USERS = (ALICE, BOB) if os.geteuid() == 0 else (None, None)
TOTALS = {"GPU-0": 10, "GPU-1": 10, "GPU-2": 24}
AT_ONCE = 6


def promised(path):
    """Return the claimed bytes, keyed by GPU UUID, without the code under test.

    A job counts once, with the largest claim in any of its files.
    """
    most = {}
    for file in path.glob("job.*"):
        try:
            with file.open() as stream:
                if is_owned(stream):
                    fields = json.load(stream)
                    for uuid, size in fields["gpus"].items():
                        key = (fields["group"], uuid)
                        most[key] = max(most.get(key, 0), size)
        except FileNotFoundError:
            pass
    return {gpu: sum(size for (_, uuid), size in most.items() if uuid == gpu) for gpu in TOTALS}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_random_kills_never_overbook_a_gpu_or_leave_a_claim(folder, path):
    seed = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(1 << 31))
    begun_s = time.monotonic()
    storms = []
    for number, uid in enumerate(USERS):
        order = {"folder": str(path), "uid": uid, "seed": seed + number, "totals": TOTALS, "at_once": AT_ONCE}
        order["kills"] = KILLS // len(USERS)
        command = [sys.executable, str(Path(__file__).with_name("storm.py")), json.dumps(order)]
        # Each storm has a session of its own, so that all its processes can be killed together.
        pipe = subprocess.PIPE
        storms.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
    looks, most = 0, dict.fromkeys(TOTALS, 0)
    try:
        while any(storm.poll() is None for storm in storms) and time.monotonic() - begun_s < 800:
            # No process can claim while we hold the mutex, so all files show the claims of the same moment.
            with replace(folder, patience_s=TIMEOUT_S).locked():
                now = promised(path)
            looks += 1
            most = {gpu: max(size, most[gpu]) for gpu, size in now.items()}
            time.sleep(0.002)
        told = [storm.communicate(timeout=TIMEOUT_S) for storm in storms]
    finally:
        for storm in storms:
            try:
                os.killpg(storm.pid, 9)
            except ProcessLookupError:
                pass
            storm.communicate(timeout=TIMEOUT_S)
    answers = [json.loads(out) for out, _ in told]
    killed = {doing: sum(answer["killed"][doing] for answer in answers) for doing in answers[0]["killed"]}
    wrong = [each for answer in answers for each in answer["wrong"]]
    whole = acquire_lease(Lease(folder, "after.py"), lambda seen, _: None if seen else TOTALS)

    print(f"\nstorm of kills: seed {seed} (STORM_SEED), {sum(killed.values())} processes of users {USERS}")
    print(f"  tried  killed while {', '.join(f'{doing} {count}' for doing, count in killed.items())}")
    print(f"  held   after each kill: no lease, no place in the queue, the mutex can be had; exceptions: {len(wrong)}")
    print(f"  held   in {looks} looks: at most {most} promised of {TOTALS}")
    print(f"  held   at the end: {sorted(whole.claims) if whole else 'nothing'} for one that wants all")
    print(f"  took   {time.monotonic() - begun_s:.0f} s")

    assert [errors for _, errors in told] == ["", ""]
    assert wrong == []
    assert sum(killed.values()) == KILLS // 2 * 2
    assert all(most[gpu] <= size for gpu, size in TOTALS.items())
    # The storm proves something only if several processes held claims at the same time.
    assert all(most[gpu] > size // 2 for gpu, size in TOTALS.items())
    assert sum(count > 0 for count in killed.values()) >= 4
    assert whole is not None
    whole.release()
    assert (holders(folder), waiters(folder)) == ((), ())
    assert list(path.glob("[!.]*")) == []
