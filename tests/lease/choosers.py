"""Functions that choose GPUs for the jobs of the lease tests, given the holders and the waiters."""

from autogpu.lease import Terms
from autogpu.lease.queue import wait_for_lease


def wait_for_claims(lease, choose, *, on_wait=lambda state: None, **options):
    """Wait until ``choose`` returns claims, and return ``lease``, which holds them."""

    def pair(holders, waiters):
        claims = choose(holders, waiters)
        return None, None if claims is None else Terms(claims)

    wait_for_lease(lease, pair, on_wait=lambda state, _: on_wait(state), **options)
    return lease


def promised(holders):
    """Return the claimed bytes, keyed by GPU UUID: the sum over jobs of the largest claim of the job's processes."""
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
    """Return a function that takes the first GPU that is neither held nor waited for."""

    def choose(holders, waiters):
        taken = promised(holders)
        for uuid in uuids:
            if uuid not in taken and not any(waiter.demand.could_use(uuid) for waiter in waiters):
                return {uuid: size}
        return None

    return choose


def room(totals, size):
    """Return a function that takes the first GPU with ``size`` bytes left. It ignores the waiters."""

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
