"""A real Slurm on loopback ports, for as long as a ``with`` lasts: a controller, and a node for each server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Mapping, Sequence

from tests.engines.site import OF_THE_SITE, names_in, site_lines
from tests.gpusim import Server

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo", "scontrol")
CPUS = 16
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
START_S, STOP_S, CLIENT_S = 60, 20, 240
# One of the majors that Linux keeps for local use: opening such a file fails for want of a driver, with ENXIO, unless
# a cgroup denies it first.
LOCAL_MAJOR = 60
DEVICES = Path("/sys/fs/cgroup/devices")

CONFIGURATION = """\
ClusterName=engines
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPort={port}
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
"""
CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainDevices=yes
"""


def missing() -> str:
    """Why there can be no Slurm on this machine; empty if there can."""
    if os.geteuid() != 0:
        return "slurmd starts other users' jobs, and so runs as root only"
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def missing_for_cgroups() -> str:
    """Why Slurm can't keep a job from the GPUs of others on this machine; empty if it can."""
    if not (DEVICES / "devices.deny").exists() and not (DEVICES / "cgroup.procs").exists():
        return "no hierarchy of device cgroups (version 1) on this machine"
    return "" if os.access(DEVICES, os.W_OK) else f"{DEVICES} can't be written"


def search_path() -> str:
    # The daemons are in sbin, which not every shell searches.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


class Slurm:
    """A cluster of its own. Every program that it starts ends with the ``with``, and so do all jobs.

    Args:
        folder: Where all files of the cluster are. Its path must be short: it holds a socket.
        servers: The simulated server of each node. What runs on a node runs on its server, and where there are
            several, with a lease folder of its own.
        gpus: Of each node.
        shards: Of each node, spread evenly over its GPUs.
        gres_types: The configuration's ``GresTypes``; ``""`` for a cluster that does not manage GPUs, whose nodes
            then have none.
        cgroup: Whether a job is kept from the GPUs that it was not granted (``ConstrainDevices``).
        site: By name, files of a site, which say what jobs can ask for instead of the arguments above.

    Raises:
        RuntimeError: On entering, where a daemon ends or the nodes are not ready in time; with the daemons' logs.
    """

    def __init__(
        self,
        folder: Path,
        *servers: Server,
        gpus: int = 4,
        shards: int = 0,
        gres_types: str = "gpu,shard",
        cgroup: bool = False,
        site: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.servers, self._site = folder, servers, site
        self._gpus, self._shards, self._gres_types, self._has_cgroup = gpus, shards, gres_types, cgroup
        self._ports = free_ports(1 + len(servers))
        # Also the name of the node's cgroup, so other clusters on this host have others.
        self.nodes = tuple(f"node{port}" for port in self._ports[1:])
        if site is not None:
            (nodes,) = re.findall(r"^NodeName=(\S+)", site["slurm.conf"], re.MULTILINE)
            self.nodes = tuple(names_in(nodes))
        self._daemons: dict[str, subprocess.Popen[Any]] = {}
        self._clients: list[subprocess.Popen[str]] = []
        self._batches = 0

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    def __enter__(self) -> Slurm:
        with ExitStack() as on_failure:
            on_failure.callback(self._stop)
            self._write()
            self._start("munged", "munged", "--foreground", "--force", *self._munge_files())
            self._wait_for(lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))
            for node in self.nodes:
                self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.configuration))
            self._wait_for(self._is_ready)
            on_failure.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    # ---- what runs in it ----

    def run(
        self,
        *arguments: str,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        program: str = "srun",
        timeout: float = CLIENT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end by ``srun``, or by another program that starts jobs, on the simulated servers.

        Raises:
            subprocess.TimeoutExpired: It was not done in time. The job is killed with the cluster.
        """
        client = self.popen(*arguments, command=command, environ=environ, program=program, stdin=subprocess.DEVNULL)
        stdout, stderr = client.communicate(timeout=timeout)
        return subprocess.CompletedProcess(client.args, client.returncode, stdout, stderr)

    def popen(
        self,
        *arguments: str,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        program: str = "srun",
        stdin: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command by ``srun`` and return at once; its input and output are pipes, and are the job's."""
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
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
        timeout: float = CLIENT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script to its end by ``sbatch``; what each job of an array wrote, one after the other.

        Raises:
            subprocess.TimeoutExpired: It was not done in time. The job is killed with the cluster.
        """
        self._batches += 1
        place = self.folder / f"batch{self._batches}"
        place.mkdir()
        file = place / "script"
        file.write_text(f"#!/bin/sh\n{script}")
        options = ["--parsable", f"--output={place}/%j.out", f"--error={place}/%j.err", *arguments]
        # Not with --wait: that looks after its jobs at intervals that grow to half a minute.
        submitted = self.run(*options, command=[str(file)], environ=environ, program="sbatch", timeout=timeout)
        if submitted.returncode:
            return submitted
        job = submitted.stdout.strip()
        deadline = time.monotonic() + timeout
        statuses = self._exit_statuses(job)
        while not statuses:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(submitted.args, timeout)
            time.sleep(0.2)
            statuses = self._exit_statuses(job)
        written = {end: "".join(path.read_text() for path in sorted(place.glob(f"*.{end}"))) for end in ("out", "err")}
        return subprocess.CompletedProcess(submitted.args, max(statuses), written["out"], written["err"])

    def _exit_statuses(self, job: str) -> list[int]:
        """Of each job of the array, or of the only one; empty until all have ended."""
        jobs = self._ask("scontrol", "--oneliner", "show", "job", job).splitlines()
        fields = [dict(field.split("=", 1) for field in line.split() if "=" in field) for line in jobs]
        if not all(each.get("JobState") in ENDED for each in fields):
            return []
        return [max(int(number) for number in each["ExitCode"].split(":")) for each in fields]

    # ---- how it is set up ----

    def _environ(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        return self.servers[0].environ_of_child(
            {"PATH": search_path(), "SLURM_CONF": str(self.configuration), **(environ or {})}
        )

    def _munge_files(self) -> list[str]:
        folder = self.folder
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {"key-file": key.name, "socket": "munge.socket", "pid-file": "munge.pid"}
        files.update({"log-file": "munge.log", "seed-file": "munge.seed"})
        return [f"--{option}={folder / name}" for option, name in files.items()]

    def _write(self) -> None:
        host = socket.gethostname().split(".")[0]
        controller = CONFIGURATION.format(
            host=host,
            folder=self.folder,
            port=self._ports[0],
            task_plugin="task/cgroup" if self._has_cgroup else "task/none",
        )
        if self._site is not None:
            self._write_site(host, controller)
            return
        lines = [controller, f"GresTypes={self._gres_types}\n" if self._gres_types else ""]
        resources = ["AutoDetect=off\n"]
        gres = ""
        if self._gres_types:
            gres = f"Gres=gpu:{self._gpus}" + (f",shard:{self._shards}" if self._shards else "")
        for position, (node, port) in enumerate(zip(self.nodes, self._ports[1:])):
            (self.folder / f"spool.{node}").mkdir()
            address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"NodeName={node} {address} CPUs={CPUS} RealMemory=1000 {gres} State=UNKNOWN\n")
            if gres:
                files = f"{self._make_devices(position)}/nvidia[0-{self._gpus - 1}]"
                resources.append(f"NodeName={node} Name=gpu File={files}\n")
                resources.append(f"NodeName={node} Name=shard Count={self._shards}\n" if self._shards else "")
        lines.append(f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n")
        self._write_files("".join(lines), "".join(resources))

    def _write_site(self, host: str, controller: str) -> None:
        """The site's configuration, on this machine."""
        own = "".join(line for line in controller.splitlines(True) if line.split("=")[0] not in OF_THE_SITE)
        addresses = {
            node: f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            for node, port in zip(self.nodes, self._ports[1:])
        }
        for node in self.nodes:
            (self.folder / f"spool.{node}").mkdir()
        # The nodes have one folder of devices: what Slurm wants to see of them is the same.
        resources = self._site["gres.conf"].replace("/dev/", f"{self._make_devices(0)}/")
        self._write_files(own + site_lines(self._site["slurm.conf"], addresses), resources)

    def _write_files(self, configuration: str, resources: str) -> None:
        if len(self.nodes) > 1:
            configuration += f"TaskProlog={self._write_prolog()}\n"
        self.configuration.write_text(configuration)
        (self.folder / "gres.conf").write_text(resources)
        (self.folder / "state").mkdir()
        if self._has_cgroup:
            (self.folder / "cgroup.conf").write_text(CGROUPS)

    def _write_prolog(self) -> Path:
        """What a task runs before it begins: where it prints ``export``, Slurm changes the task's environment."""
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

    def _make_devices(self, node: int) -> Path:
        """The device files of a node's GPUs. Slurm demands devices, of any kind."""
        folder = device_folder(self.folder, node)
        folder.mkdir()
        for number in range(self._gpus):
            path = folder / f"nvidia{number}"
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(LOCAL_MAJOR, number))
            except PermissionError:
                if self._has_cgroup:
                    raise
                # A container without CAP_MKNOD.
                path.symlink_to(("/dev/null", "/dev/zero", "/dev/full", "/dev/random")[number % 4])
        return folder

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            environ = {"PATH": search_path(), "SLURM_CONF": str(self.configuration)}
            self._daemons[name] = subprocess.Popen(command, env=environ, cwd=str(self.folder), **streams)

    def _wait_for(self, condition: Any) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                what = f"{', '.join(ended)} ended" if ended else f"not ready after {START_S} s"
                logs = "".join(f"--- {log.name}\n{log.read_text()[-3000:]}\n" for log in self.folder.glob("*.log"))
                raise RuntimeError(f"Slurm: {what}\n{logs}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        shown = self._ask("sinfo", "--noheader", "--Node", "--format=%N %T")
        states = dict(line.split() for line in shown.splitlines())
        return {node: states.get(node) for node in self.nodes} == dict.fromkeys(self.nodes, "idle")

    def _ask(self, *command: str) -> str:
        """What a client says, and nothing where it fails or gets no answer."""
        settings = {"capture_output": True, "text": True, "check": False, "env": self._environ()}
        try:
            return subprocess.run(command, timeout=STOP_S, **settings).stdout
        except subprocess.TimeoutExpired:
            return ""

    # ---- how it ends ----

    def _stop(self) -> None:
        children = [*self._daemons.values(), *self._clients]
        for child in children:
            # The daemons too: what they would write down is thrown away.
            child.kill()
        for child in children:
            child.wait(timeout=STOP_S)
            for stream in filter(None, (child.stdin, child.stdout, child.stderr)):
                try:
                    stream.close()
                except BrokenPipeError:
                    # What was still to be written to a client that is gone.
                    pass
        self._daemons.clear()
        self._clients.clear()
        # What the nodes started is not our child: jobs, and the slurmstepd above each of them.
        deadline = time.monotonic() + STOP_S
        while self._kill_jobs() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._has_cgroup:
            self._remove_cgroups()

    def _kill_jobs(self) -> bool:
        """Kill every process that was started with this cluster's configuration; whether there was one."""
        mine = f"SLURM_CONF={self.configuration}".encode()
        was_one = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if int(path.parent.name) != os.getpid() and mine in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    was_one = True
            except OSError:
                # It has ended, or is one of the kernel's.
                continue
        return was_one

    def _remove_cgroups(self) -> None:
        for node in self.nodes:
            for top in Path("/sys/fs/cgroup").glob(f"*/*{node}*"):
                for folder, _, _ in os.walk(top, topdown=False):
                    Path(folder).rmdir()


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        # Nodes are numbered by Slurm in the order of their names, which end in the port.
        return sorted(free.getsockname()[1] for free in sockets)


def device_folder(folder: Path, node: int = 0) -> Path:
    """Where a cluster in this folder has the device files of one of its nodes."""
    return folder / f"dev{node}"
