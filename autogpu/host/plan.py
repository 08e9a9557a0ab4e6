"""Decide what to do on a host, from what was seen there."""

from __future__ import annotations

from autogpu.errors import InstallError
from autogpu.host.condition import boot_part, folder_distrust, folder_problem, mutex_distrust, mutex_problem
from autogpu.host.model import MARKER, Host, Step
from autogpu.host.proposal import MAKES_FOLDER, is_as_written, policy_text, tmpfiles_text


def plan_setup(host: Host) -> tuple[Step, ...]:
    """What is to be done, in order; nothing where all is in place.

    Raises:
        InstallError: Only root may, or what lies there is not to be trusted or not ours.
    """
    _refuse_others(host)
    places = host.places
    steps = []
    if host.has_tmpfiles and not host.has_own_tmpfiles and host.tmpfiles != tmpfiles_text():
        steps.append(Step("write", places.tmpfiles, tmpfiles_text()))
    boot = boot_part(host)
    if host.has_own_tmpfiles and boot.problem and boot.is_required:
        raise InstallError(f"{boot.path} {boot.problem}", remedy="move it away and run this again")
    for path, status, distrust, problem in (
        (places.folder, host.folder, folder_distrust(host), folder_problem(host)),
        (places.mutex, host.mutex, mutex_distrust(host), mutex_problem(host)),
    ):
        if distrust:
            raise InstallError(f"{path} {distrust}", remedy=f"see whose it is, remove it, and run {host.command()}")
        # A folder comes with its mutex.
        if problem and (path == places.folder or host.folder is not None):
            steps.append(Step("make" if status is None else "repair", path))
    if host.policy is None or (is_as_written(host.policy) and host.policy != policy_text()):
        steps.append(Step("write", places.policy, policy_text()))
    return tuple(steps)


def plan_undo(host: Host) -> tuple[Step, ...]:
    """What is to be removed, in order, and what is left. Whether the folder is in use is seen when it is tried.

    Raises:
        InstallError: Only root may.
    """
    _refuse_others(host, "--undo")
    places = host.places
    steps = [Step("remove", path) for path in host.leftovers]
    foreign = "was not written by autogpu"
    if host.has_own_tmpfiles:
        steps.append(Step("leave", places.tmpfiles, why=foreign))
    elif host.tmpfiles is not None:
        steps.append(Step("remove", places.tmpfiles))
    if host.policy is not None and is_as_written(host.policy):
        steps.append(Step("remove", places.policy))
    elif host.policy is not None:
        why = "has been changed since autogpu wrote it" if MARKER in host.policy else foreign
        steps.append(Step("leave", places.policy, why=why))
    if host.folder is not None:
        distrust = folder_distrust(host)
        if distrust:
            steps.append(Step("leave", places.folder, why=distrust))
        elif host.has_own_tmpfiles and MAKES_FOLDER.search(host.tmpfiles or b""):
            steps.append(Step("leave", places.folder, why=f"is what {places.tmpfiles} asks for"))
        else:
            steps.append(Step("remove", places.folder))
    return tuple(steps)


def _refuse_others(host: Host, *options: str) -> None:
    if host.places.is_host and host.euid != 0:
        raise InstallError("host-setup writes below /etc and /run, which only root may", remedy=host.command(*options))
