"""States of a host at one moment, built from plain values."""

from pathlib import Path
from types import MappingProxyType

from autogpu.engines.grants import EngineFacts, granted
from autogpu.engines.launchers import local_rank
from autogpu.lease import Demand, Holder, LeaseSnapshot, Processes, Waiter
from autogpu.policy import resolve
from autogpu.selection.members import family_of
from autogpu.status.preview import request_for_new_process
from autogpu.status.snapshot import LeasesHere, Names, host_status
from autogpu.text import GIB
from tests.support.values import gpu

NOW_S = 1_000_000.0
HOUR_S = 3600.0


USERS = {0: "root", 1000: "ann", 1001: "bob"}
NAMES = Names("lab", lambda uid: USERS.get(uid, f"uid {uid}"), lambda pid: ("bob", "python"))


def holder(name, *claims, script="train.py", uid=1000, pid=7, group="", age_s=60.0):
    held = {gpu(index).uuid: int(gib * GIB) for index, gib in claims}
    return Holder(name, uid, False, pid, None, 1, NOW_S - age_s, script, group, held)


def waiter(place, script, *, gib=None, silent_s=0.0, gpus=(), joins=False):
    demand = Demand(1, None if gib is None else int(gib * GIB), tuple(gpu(index).uuid for index in gpus), joins)
    ticket = (f"wait.{place}", 1001, False, 88, None, 1, NOW_S - 90, script)
    return Waiter(*ticket, silent_s=silent_s, demand=demand)


def host(
    machine,
    holders=(),
    waiters=(),
    pids=None,
    parent=None,
    hook="/env/site-packages/_autogpu_hook.py",
    printed=MappingProxyType({}),
    **environ,
):
    """Return the status of ``machine`` as ``autogpu status`` computes it.

    Args:
        parent: The holder that started the shell in which ``autogpu status`` runs.
        pids: The processes of each holder's job, keyed by the holder's name; by default only the holder's own pid.
    """
    processes = Processes({each.name: (each.pid,) for each in holders}) if pids is None else pids
    nowhere = Path("/nowhere")
    resolved = resolve(environ, script=None, working_directory=nowhere, system_file=nowhere / "autogpu.toml")
    leases = LeaseSnapshot(tuple(holders), tuple(waiters))
    family = family_of(parent, leases.holders, has_parents_list=True)
    grant = granted(environ, EngineFacts(rank=local_rank(environ)))
    request = request_for_new_process(resolved, environ, machine, grant, own_uid=1000)
    return host_status(
        machine,
        LeasesHere(None, leases, processes, family, printed=printed),
        resolved,
        request,
        now_s=NOW_S,
        hook=hook,
        names=NAMES,
    )
