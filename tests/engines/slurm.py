"""A real Slurm on loopback ports: a controller and one node for each server, within a ``with`` statement."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from tests.engines.engine_jobs import free_ports
from tests.gpusim import Server

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo", "scontrol")
START_S, STOP_S, CLIENT_S = 60, 20, 240
# A device major that Linux reserves for local use. No driver has it, so opening such a device fails with ENXIO, unless
# a cgroup denies it first.
LOCAL_MAJOR = 60
CGROUPS = Path("/sys/fs/cgroup")

CONTROLLER = """\
ClusterName=engines
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPort={port}
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
"""
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainDevices=yes
"""
# Keys of slurm.conf that define what jobs can request. The other keys depend on the machine that runs Slurm.
OF_THE_SITE = ("SelectType", "SelectTypeParameters", "GresTypes", "NodeName", "PartitionName")
SITES = itertools.count(1)


def missing() -> str:
    """Return the reason why Slurm can't run on this machine; ``""`` if it can."""
    if os.geteuid() != 0:
        return "slurmd starts other users' jobs, and so runs as root only"
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def missing_for_cgroups() -> str:
    """Return the reason why Slurm can't keep a job from the GPUs of other jobs on this machine; ``""`` if it can."""
    devices = CGROUPS / "devices"
    if not (devices / "devices.deny").exists() and not (devices / "cgroup.procs").exists():
        return "no hierarchy of device cgroups (version 1) on this machine"
    return "" if os.access(devices, os.W_OK) else f"{devices} can't be written"


def search_path() -> str:
    # The daemons are in sbin, which is not in every user's PATH.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def site_of(page: Path) -> dict[str, str]:
    """Return the files that a page prints, keyed by name: code blocks that begin with ``# /etc/slurm/<name>``."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named = ((re.match(r"# /etc/slurm/([\w.]+)", block), block) for block in blocks)
    return {found.group(1): block for found, block in named if found}


def site(*, nodes: int, gpus: int, shards: int = 0, mps: int = 0) -> dict[str, str]:
    """Return the files of a site, keyed by name.

    Args:
        gpus: GPUs of each node; 0 for a cluster that does not manage GPUs.
        shards: Shards of each node, spread evenly over its GPUs.
        mps: MPS units of each node, spread likewise. Jobs request them by ``--gres=mps``.
    """
    # Cgroups are named after their node, so the nodes of each cluster on this host need names of their own.
    names = f"n{os.getpid()}x{next(SITES)}x[1-{nodes}]"
    parts = {name: count for name, count in (("shard", shards), ("mps", mps)) if count}
    gres = "Gres=" + ",".join([f"gpu:{gpus}", *(f"{name}:{count}" for name, count in parts.items())]) if gpus else ""
    return {
        "slurm.conf": "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
        + (f"GresTypes={','.join(['gpu', *parts])}\n" if gpus else "")
        + f"NodeName={names} CPUs=16 RealMemory=1000 {gres} State=UNKNOWN\n"
        + f"PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP\n",
        "gres.conf": "AutoDetect=off\n"
        + (f"NodeName={names} Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n" if gpus else "")
        + "".join(f"NodeName={names} Name={name} Count={count}\n" for name, count in parts.items()),
    }


class Slurm:
    """A Slurm cluster. All its programs and jobs end with the ``with`` statement.

    Args:
        folder: The folder of all files of the cluster. Its path must be short, because it contains a socket.
        servers: The simulated server of each node. A node's jobs run on its server. If there are several nodes, each
            has its own lease folder.
        site: The files of a site, keyed by name. They define what jobs can request.
        cgroup: True if cgroups deny a job the GPUs that it was not granted (``ConstrainDevices``).

    Raises:
        RuntimeError: A daemon ended, or the nodes were not ready in time, when the ``with`` was entered. The text
            contains the daemons' logs.
    """

    def __init__(self, folder: Path, *servers: Server, site: Mapping[str, str], cgroup: bool = False) -> None:
        self.folder, self.servers, self._site, self._has_cgroup = folder, servers, site, cgroup
        ((stem, first, last),) = re.findall(r"^NodeName=(\w+)\[(\d+)-(\d+)\]", site["slurm.conf"], re.MULTILINE)
        self.nodes = tuple(f"{stem}{number}" for number in range(int(first), int(last) + 1))
        self.configuration = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[Any]] = {}
        self._clients: list[subprocess.Popen[str]] = []
        self._batches = 0

    def __enter__(self) -> Slurm:
        with ExitStack() as on_failure:
            on_failure.callback(self.__exit__)
            self._write()
            self._start("munged", "munged", "--foreground", "--force", *self._munge_files())
            self._wait_for((self.folder / "munge.socket").exists)
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))
            for node in self.nodes:
                self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.configuration))
            self._wait_for(self._is_ready)
            on_failure.pop_all()
        return self

    # ---- jobs ----

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end by ``srun`` or another program. The options are those of ``popen``.

        Raises:
            subprocess.TimeoutExpired: The command did not end in time. The job is killed with the cluster.
        """
        client = self.popen(*arguments, stdin=subprocess.DEVNULL, **options)
        stdout, stderr = client.communicate(timeout=CLIENT_S)
        return subprocess.CompletedProcess(client.args, client.returncode, stdout, stderr)

    def popen(
        self,
        *arguments: str,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        program: str = "srun",
        stdin: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command by ``program`` on the simulated servers; pipes connect to the job's input and output."""
        pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        client = subprocess.Popen(
            [program, *arguments, *command], env=self._environ(environ), cwd=str(self.folder), text=True, **pipes
        )
        self._clients.append(client)
        return client

    def batch(
        self,
        script: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        scripts: int = 1,
        timeout: float = CLIENT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script to its end by ``sbatch``; return the joined output of its jobs.

        Args:
            scripts: The number of jobs in the array.

        Raises:
            RuntimeError: The jobs did not end in time. The text contains Slurm's description of them.
        """
        self._batches += 1
        place = self.folder / f"batch{self._batches}"
        place.mkdir()
        file = place / "script"
        # The script writes a file at its end, because `sbatch --wait` polls at intervals that grow to half a minute.
        end = f"echo $? >{place}/$$.new; mv {place}/$$.new {place}/$$.status"
        file.write_text(f"#!/bin/sh\n({script}\n)\n{end}\n")
        options = ["--parsable", f"--output={place}/%j.out", f"--error={place}/%j.err", *arguments]
        submitted = self.run(*options, command=[str(file)], environ=environ, program="sbatch")
        if submitted.returncode:
            return submitted
        deadline = time.monotonic() + timeout
        while len(list(place.glob("*.status"))) < scripts:
            if time.monotonic() > deadline:
                said = self._ask("scontrol", "show", "job", submitted.stdout.strip())
                raise RuntimeError(f"a batch job has not ended after {timeout:.0f} s\n{said}\n{self._logs()}")
            time.sleep(0.05)
        status = max(int(path.read_text()) for path in place.glob("*.status"))
        written = ["".join(path.read_text() for path in sorted(place.glob(f"*.{end}"))) for end in ("out", "err")]
        return subprocess.CompletedProcess(submitted.args, status, *written)

    # ---- set-up ----

    def _environ(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"PATH": search_path(), "SLURM_CONF": str(self.configuration)}
        return self.servers[0].environ_of_child({**own, **(environ or {})})

    def _munge_files(self) -> list[str]:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        ends = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        return [f"--{option}={self.folder}/munge.{end}" for option, end in ends.items()]

    def _write(self) -> None:
        host, folder = socket.gethostname().split(".")[0], self.folder
        controller, *ports = free_ports(1 + len(self.nodes))
        plugin = "task/cgroup" if self._has_cgroup else "task/none"
        lines = [CONTROLLER.format(host=host, folder=folder, port=controller, task_plugin=plugin)]
        for line in self._site["slurm.conf"].splitlines(keepends=True):
            key = line.partition("=")[0]
            if key == "NodeName":
                fields = line.partition(" ")[2]
                address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port="
                lines += [f"NodeName={node} {address}{port} {fields}" for node, port in zip(self.nodes, ports)]
            elif key in OF_THE_SITE:
                lines.append(line)
        if len(self.nodes) > 1:
            lines.append(f"TaskProlog={self._write_prolog()}\n")
        self.configuration.write_text("".join(lines))
        # The nodes share one folder of device files, because Slurm expects the same files on each.
        resources = self._site["gres.conf"].replace("/dev/", f"{device_folder(folder)}/")
        (folder / "gres.conf").write_text(resources)
        self._make_devices()
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (folder / name).mkdir()
        if self._has_cgroup:
            (folder / "cgroup.conf").write_text(CGROUP_CONF)

    def _write_prolog(self) -> Path:
        """Write the TaskProlog, by which each task gets the environment of its node's server.

        Slurm runs it before each task, and applies the ``export`` lines that it prints to the task's environment.
        """
        cases = []
        for node, server in zip(self.nodes, self.servers):
            environ = {**server.environ_of_child(), "AUTOGPU_LEASE_DIR": str(self.folder / f"leases.{node}")}
            own = [name for name in environ if name.startswith("GPUSIM_") or name == "AUTOGPU_LEASE_DIR"]
            prints = "\n".join(f"echo export {name}={environ[name]}" for name in own)
            cases.append(f"{node})\n{prints}\n;;\n")
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/sh\ncase $SLURMD_NODENAME in\n{''.join(cases)}esac\n")
        prolog.chmod(0o755)
        return prolog

    def _make_devices(self) -> None:
        """Make the device files of a node's GPUs. Slurm demands devices, but accepts any kind."""
        folder = device_folder(self.folder)
        folder.mkdir()
        for number in range(len(self.servers[0].gpus)):
            path = folder / f"nvidia{number}"
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(LOCAL_MAJOR, number))
            except PermissionError:
                if self._has_cgroup:
                    raise
                # A container without CAP_MKNOD can't make devices, so links to other devices replace them.
                path.symlink_to(("/dev/null", "/dev/zero", "/dev/full", "/dev/random")[number % 4])

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("w") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            environ = {"PATH": search_path(), "SLURM_CONF": str(self.configuration)}
            self._daemons[name] = subprocess.Popen(command, env=environ, cwd=str(self.folder), **streams)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                what = f"{', '.join(ended)} ended" if ended else f"not ready after {START_S} s"
                raise RuntimeError(f"Slurm: {what}\n{self._logs()}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        shown = self._ask("sinfo", "--noheader", "--Node", "--format=%N %T")
        return sorted(shown.splitlines()) == sorted(f"{node} idle" for node in self.nodes)

    def _logs(self) -> str:
        return "".join(f"--- {log.name}\n{log.read_text()[-3000:]}\n" for log in self.folder.glob("*.log"))

    def _ask(self, *command: str) -> str:
        """Return the stdout of a Slurm command; ``""`` if it gets no answer in time."""
        settings: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "env": self._environ()}
        try:
            return subprocess.run(command, timeout=STOP_S, **settings).stdout
        except subprocess.TimeoutExpired:
            return ""

    # ---- end ----

    def __exit__(self, *error: object) -> None:
        for child in (*self._daemons.values(), *self._clients):
            # The daemons are killed as well: nobody needs the state that they would save.
            child.kill()
            child.wait(timeout=STOP_S)
            for stream in filter(None, (child.stdin, child.stdout, child.stderr)):
                # The close may flush input for a client that has ended.
                with suppress(BrokenPipeError):
                    stream.close()
        # Jobs, and the slurmstepd processes that started them, are not children of this process.
        deadline = time.monotonic() + STOP_S
        while self._kill_jobs():
            if time.monotonic() > deadline:
                raise RuntimeError("jobs of this Slurm can't be killed")
            time.sleep(0.02)
        tops = [top for node in self.nodes for top in CGROUPS.glob(f"*/*{node}*")] if self._has_cgroup else []
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()

    def _kill_jobs(self) -> bool:
        """Kill all processes that have this cluster's configuration; return True if there was any."""
        mine = f"SLURM_CONF={self.configuration}".encode()
        was_one = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            # The process has ended, or is a kernel thread.
            with suppress(OSError):
                if int(path.parent.name) != os.getpid() and mine in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    was_one = True
        return was_one


def device_folder(folder: Path) -> Path:
    return folder / "dev"
