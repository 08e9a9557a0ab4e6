"""Facts for tests of ``autogpu doctor``: those of a healthy machine, and changes that ``frozen.replace`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from autogpu.devices.model import Device, FailureCause, Inventory, UnreadableDevice
from autogpu.devices.nvml import NO_ANSWER
from autogpu.doctor.model import Facts
from autogpu.host.hook_folder import HookFolder
from autogpu.host.model import HostFault, HostProblem
from autogpu.install import FreshStart
from autogpu.lease import Fault, Folder, LeaseProblem
from autogpu.lease.folder import FolderOrigin
from autogpu.policy import resolve
from autogpu.snippet import Answer
from autogpu.variables import CUDA_VISIBLE_DEVICES
from tests.support.values import gpu, inventory

Changes = dict[str, Any]


def healthy_facts(folder: Path) -> Facts:
    """Return the facts of a machine without a problem. ``folder`` is an empty folder."""
    return Facts(
        environ={},
        executable="/env/bin/python",
        start=FreshStart(Path("/env/site-packages/_autogpu_hook.py"), None, ""),
        pythons={},
        inventory=inventory(gpu(0), gpu(1), driver_version="550.54.15"),
        cuda=Answer([2, 12040, []]),
        **tensorflow(),
        folder=Folder(Path("/run/autogpu"), FolderOrigin.HOST, 0),
        lease_problem=None,
        is_in_container=False,
        resolved=resolve({}, script=None, working_directory=folder, system_file=folder / "none"),
    )


# Answers of the frameworks of an environment.
_HOOKED = {"missing": {}, "obstacle": ""}
TENSORFLOW = {"version": "2.21.0", "build": "built with CUDA", "gpus": 2, **_HOOKED}
TORCH = {"version": "2.15.0", "build": "built for CUDA 13.2", "gpus": 2, **_HOOKED}
JAX = {"version": "0.10.2", "build": "plug-in xla_cuda12", "gpus": None, **_HOOKED}


def tensorflow(**changes: object) -> Changes:
    return answer({**TENSORFLOW, **changes})


def torch(**changes: object) -> Changes:
    return {"frameworks": {"torch": Answer({**TORCH, **changes})}}


def jax(**changes: object) -> Changes:
    return {"frameworks": {"jax": Answer({**JAX, **changes})}}


def answer(value: object, error: str = "", *, timed_out: bool = False) -> Changes:
    return {"frameworks": {"tensorflow": Answer(value, error, timed_out=timed_out)}}


def driver(failure: str, cause: FailureCause = FailureCause.DRIVER) -> Changes:
    return {"inventory": Inventory(failure=failure, failure_cause=cause)}


def gpus(*devices: Device, **fields: Any) -> Changes:
    return {"inventory": inventory(gpu(0), *devices, **fields)}


def cuda(count: int) -> Changes:
    return {"cuda": Answer([count, 12040, []])}


def no_cuda(error: str = "no such file", *, timed_out: bool = False) -> Changes:
    return {"cuda": Answer(error=error, timed_out=timed_out)}


def start(sitecustomize: Path | None = None, complaint: str = "", *, timed_out: bool = False) -> Changes:
    """Return the start of a fresh Python that loads no hook."""
    return {"start": FreshStart(None, sitecustomize, complaint, timed_out)}


def visible(value: str) -> Changes:
    return {"environ": {CUDA_VISIBLE_DEVICES: value}}


def policy(
    folder: Path, system: str = "", project: str = "", environ: Mapping[str, str] | None = None, *, mode: int = 0o644
) -> Changes:
    """Write a system file and a project file into ``folder``, and return the policy that autogpu reads from them.

    Args:
        system: The text of the system file.
        project: The text of the project file.
        environ: The environment variables from which autogpu reads the policy.
        mode: The permissions of the project file.
    """
    system_file, project_file = folder / "system.toml", folder / "autogpu.toml"
    system_file.write_text(system)
    project_file.write_text(project)
    project_file.chmod(mode)
    return {"resolved": resolve(environ or {}, script=None, working_directory=folder, system_file=system_file)}


WHOLE = HookFolder(Path("/usr/local/lib/autogpu-1.2.3-abc"), "1.2.3", ("cpython-311",))
CUT = HostProblem(HostFault.FOLDER_DIFFERS, str(WHOLE.folder))
HOST_HOOK = WHOLE.folder / "sitecustomize.py"
HOSTS: Changes = {"start": FreshStart(HOST_HOOK, None, ""), "has_hosts_hook": True, "tag": "cpython-311"}
DEBIAN = Path("/usr/lib/python3.11/sitecustomize.py")
CONDA: Changes = {"pythons": {"python": "/conda/bin/python"}}

NO_DRIVER = driver("NVML reports: no library", FailureCause.NO_DRIVER)
NO_PYNVML = driver("pynvml (nvidia-ml-py) is not installed", FailureCause.PYNVML)
LOST, SILENT = UnreadableDevice(1, "GPU is lost"), UnreadableDevice(2, NO_ANSWER)

LINK = LeaseProblem(Fault.SYMLINK, "/x")
FALLBACK = Folder(Path("/var/tmp/autogpu.v1"), FolderOrigin.FALLBACK, 0)
