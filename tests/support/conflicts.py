"""A table of scripts' GPU settings (rows) against policies (columns). Each cell runs on a simulated server.

The rule: an explicit setting of the script is in force. Without one, the policy is in force. A script that runs without
autogpu must not raise with it. ``ROWS`` and ``POLICIES`` hold the settings of each side. If a cell doesn't follow from
the rule, the row's ``but`` has its expectation. Cells are judged by the memory that the driver granted, in the words of
:mod:`tests.support.driver_grants`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

import pytest

from tests.gpusim import Gpu
from tests.support import driver_grants, environments
from tests.support.forkserver import Forks
from tests.support.framework_machines import CONTEXT, Machine, Ran
from tests.support.versions import Version

# All GPUs are idle and equal, so that no cell depends on load: autogpu takes the highest index as the idlest, and CUDA
# numbers them in PCI order. They are small, because TensorFlow keeps a list of each allocator's memory, and the list is
# a thirtieth as large as that memory.
GPUS = (Gpu(name="NVIDIA GeForce GTX 1660 Ti", memory="6GiB", compute_capability="7.5"),) * 4
IDLEST_FIRST = (3, 2, 1, 0)
A_QUARTER = 1536

WHOLE, GROWS = "whole", "grows"


# Policies and rows are compared by identity, because each object is one column or row.
@dataclass(frozen=True, eq=False)
class Policy:
    """A column of the table.

    Attributes:
        environ: Variables that set the policy.
        count: Number of GPUs that the policy gives.
        growth: True if memory is allocated as needed.
        limit: Limit of each logical GPU in MiB.
        logical_gpus: Number of logical GPUs on each GPU.
    """

    name: str
    environ: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    growth: bool = True
    limit: int | None = None
    logical_gpus: int = 1


# No limit is a power of two, because growth without a limit ends at a power of two.
PLAIN = Policy("plain", {"AUTOGPU": "0"})
POLICIES = (
    Policy("growth"),
    Policy("limit", {"AUTOGPU_GROWTH": "0", "AUTOGPU_LIMIT": "800MiB"}, growth=False, limit=800),
    Policy("share", {"AUTOGPU_GROWTH": "0", "AUTOGPU_LIMIT": "25%"}, growth=False, limit=A_QUARTER),
    Policy("growth-up-to-a-limit", {"AUTOGPU_LIMIT": "1280MiB"}, limit=1280),
    Policy("everything", {"AUTOGPU_GROWTH": "0"}, growth=False),
    Policy("cpu-only", {"AUTOGPU_COUNT": "0"}, count=0),
    Policy("virtual_gpus=2", {"AUTOGPU_VIRTUAL_GPUS": "2", "AUTOGPU_LIMIT": "800MiB"}, limit=800, logical_gpus=2),
    Policy("count=2", {"AUTOGPU_COUNT": "2"}, count=2),
)


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the table: a script without its ``PROLOGUE``.

    Attributes:
        lists_first: True if the script begins with ``LISTS``.
        gpus: GPU numbers in the script. Each is given a GPU, idlest first. ``None`` if the script has no GPU number.
        growth: The script's own setting of memory growth; ``None`` if it has none.
        limit: MiB that the script sets as its limit on each GPU; ``None`` if it sets no limit.
        prints_replicas: True if the script prints its number of replicas: the number of logical GPUs, at least one.
        but: Exceptions, keyed by policy name: the expected grants keyed by GPU, or only the expected GPUs.
    """

    name: str
    script: str
    gpus: tuple[int, ...] | None = None
    growth: bool | None = None
    limit: int | None = None
    prints_replicas: bool = False
    lists_first: bool = True
    but: Mapping[str, Mapping[int, str] | tuple[int, ...]] = field(default_factory=dict)


PROLOGUE = """
import json, os
import tensorflow as tf
v1 = tf.compat.v1
config = tf.config.experimental

def tensors(logical_gpus):
    # An allocator's first region, and one that goes to its limit.
    for name, mib in zip(logical_gpus, json.loads(os.environ["PROBES"])):
        with tf.device(name):
            yield tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
            if mib:
                yield tf.raw_ops.Empty(shape=[mib, 1 << 18], dtype=tf.float32)

def use(session=None):
    if session is not None:
        names = [device.name for device in session.list_devices() if device.device_type == "GPU"]
        for tensor in list(tensors(names)):
            session.run(tensor.op)
        session.run(tf.no_op())
    elif tf.executing_eagerly():
        tf.constant(1) + 1
        list(tensors([device.name for device in config.list_logical_devices("GPU")]))
    else:
        with v1.Session() as session:
            use(session)

def use_session(target="", **options):
    with tf.Graph().as_default(), v1.Session(target, **options) as session:
        use(session)

def use_session_of(**options):
    use_session(config=v1.ConfigProto(gpu_options=v1.GPUOptions(**options)))

def growth_loop(value=True):
    for gpu in gpus:
        config.set_memory_growth(gpu, value)

def limit(gpu, *sizes):
    config.set_virtual_device_configuration(gpu, [config.VirtualDeviceConfiguration(memory_limit=mib) for mib in sizes])
"""
LISTS = "gpus = config.list_physical_devices('GPU')\n"


def limited(name: str, script: str, mib: int) -> Row:
    """Return a row with a limit set by tf.config. There a limit excludes growth, so memory is taken at once."""
    # With "count=2" the limit applies to only one of the two GPUs, and the policy's growth to both.
    but = {"count=2": {2: "grows", 3: f"grows to {mib} MiB"}} if "on-gpus" in name else {}
    return Row(name, script, growth=False, limit=mib, but=but)


ROWS = (
    Row("no-gpu-settings", "use()"),
    Row("asserts-a-gpu", "assert len(gpus) > 0; gpus[0]; use()"),
    Row("growth-loop", "growth_loop(); use()", growth=True),
    Row("growth-loop-off", "growth_loop(False); use()", growth=False),
    Row("growth-loop-twice", "growth_loop(); use(); growth_loop()", growth=True),
    # TensorFlow requires the same growth on all GPUs, so on four GPUs both scripts raise without autogpu.
    Row("growth-on-gpus[0]", "config.set_memory_growth(gpus[0], True); use()", growth=True),
    Row("growth-on-gpus[2]", "config.set_memory_growth(gpus[2], True); use()", growth=True),
    Row(
        "growth-after-the-context",
        "use()\ntry:\n    growth_loop()\nexcept RuntimeError as error:\n    assert 'cannot be modified' in str(error)",
    ),
    Row("growth-by-variable", "os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'; use()", growth=True),
    Row("no-growth-by-variable", "os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] = 'false'; use()", growth=False),
    limited("limit-on-gpus[0]", "limit(gpus[0], 1200); use()", 1200),
    limited("limit-on-gpus[2]", "limit(gpus[2], 1200); use()", 1200),
    limited("limit-on-each", "for gpu in gpus: limit(gpu, 1024)\nuse()", 1024),
    Row(
        "two-limits-on-gpus[0]",
        "limit(gpus[0], 608, 608); use()",
        but={
            **{policy.name: {3: "608 MiB + 608 MiB"} for policy in POLICIES if policy.count == 1},
            "count=2": {2: "grows", 3: "grows to 608 MiB + grows to 608 MiB"},
        },
    ),
    # The script limits one GPU and uses another, to which the limit does not apply.
    Row(
        "limit-on-gpus[0]-then-visible[2]",
        "limit(gpus[0], 1024); config.set_visible_devices(gpus[2], 'GPU'); use()",
        gpus=(2,),
    ),
    Row(
        "visible[2]-with-a-limit",
        "config.set_visible_devices(gpus[2], 'GPU'); limit(gpus[2], 1024); use()",
        gpus=(2,),
        growth=False,
        limit=1024,
    ),
    Row("visible[2]", "config.set_visible_devices(gpus[2], 'GPU'); use()", gpus=(2,)),
    Row("visible[1,3]", "config.set_visible_devices([gpus[1], gpus[3]], 'GPU'); use()", gpus=(1, 3)),
    Row("visible-all", "config.set_visible_devices(gpus, 'GPU'); use()", gpus=(0, 1, 2, 3)),
    Row("visible-none", "config.set_visible_devices([], 'GPU'); use()", gpus=()),
    # The mask is in force, because it is set before TensorFlow lists its GPUs. It restricts the choice of GPUs but
    # requests none, so a policy with a count of 0 stays in force.
    Row(
        "late-CUDA_VISIBLE_DEVICES",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'; use()",
        lists_first=False,
        but={policy.name: (1,) for policy in POLICIES if policy.count},
    ),
    # The mask has no effect, because TensorFlow has listed its GPUs before.
    Row("CUDA_VISIBLE_DEVICES-after-listing", "os.environ['CUDA_VISIBLE_DEVICES'] = '1'; use()"),
    Row("own-session", "use_session(config=v1.ConfigProto(allow_soft_placement=True))"),
    Row("own-session-growth", "use_session_of(allow_growth=True)", growth=True),
    Row("own-session-fraction", "use_session_of(per_process_gpu_memory_fraction=0.25)", limit=A_QUARTER),
    Row(
        "own-session-limit",
        # TensorFlow requires limits for each visible GPU, so the script makes one GPU visible.
        "options = v1.GPUOptions(visible_device_list='0')\n"
        "options.experimental.virtual_devices.add(memory_limit_mb=[768])\n"
        "use_session(config=v1.ConfigProto(gpu_options=options))",
        gpus=(0,),
        limit=768,
    ),
    Row("own-session-visible-2", "use_session_of(visible_device_list='2')", gpus=(2,)),
    Row("own-session-without-gpus", "use_session(config=v1.ConfigProto(device_count={'GPU': 0}))", gpus=()),
    Row("own-session-of-one-gpu", "use_session(config=v1.ConfigProto(device_count={'GPU': 1}))", but={"count=2": (3,)}),
    Row("own-session-then-default-use", "use_session(config=v1.ConfigProto()); use()"),
    Row("default-use-then-own-session", "use(); use_session(config=v1.ConfigProto())"),
    Row("growth-loop-then-own-session", "growth_loop(); use_session(config=v1.ConfigProto())", growth=True),
    limited("limit-on-gpus[0]-then-own-session", "limit(gpus[0], 1200); use_session(config=v1.ConfigProto())", 1200),
    # An interactive session uses growth by default.
    Row(
        "interactive-session",
        "with tf.Graph().as_default():\n    session = v1.InteractiveSession(); use(session); session.close()",
        growth=True,
    ),
    Row("device_lib-first", "from tensorflow.python.client import device_lib\ndevice_lib.list_local_devices(); use()"),
    Row("local-server", "use_session(v1.train.Server.create_local_server().target)"),
    Row(
        "mirrored-strategy",
        "print(tf.distribute.MirroredStrategy().num_replicas_in_sync, 'replicas'); use()",
        prints_replicas=True,
    ),
    Row(
        "second-gpu-without-soft-placement",
        "tf.config.set_soft_device_placement(False)\n"
        "with tf.device('/GPU:1'):\n    second = tf.raw_ops.Empty(shape=[2], dtype=tf.float32)\n"
        "if not tf.executing_eagerly():\n    v1.Session().run(second.op)\n"
        "use()",
        # All four GPU names become logical GPUs on one card and divide its limit. Sizes are rounded down to 16 MiB.
        but={
            "limit": {3: " + ".join(["192 MiB"] * 4)},
            "share": {3: " + ".join(["384 MiB"] * 4)},
            "growth-up-to-a-limit": {3: " + ".join(["grows to 320 MiB"] * 4)},
            "everything": {3: " + ".join(["1312 MiB"] * 4)},
            "virtual_gpus=2": {3: " + ".join(["grows to 400 MiB"] * 4)},
        },
    ),
)
# These scripts may also raise without autogpu: most TensorFlow versions require the same growth on all GPUs.
MAY_RAISE_PLAIN = {"growth-on-gpus[0]", "growth-on-gpus[2]"}


def expected(row: Row, policy: Policy) -> Mapping[int, str]:
    """Return the expected grants in words, keyed by GPU."""
    cell = row.but.get(policy.name)
    if isinstance(cell, Mapping):
        return cell
    if cell is not None:
        gpus: Sequence[int] = cell
    elif row.gpus is not None:
        # A policy with a count of 0 takes away even the GPUs that the script uses by number.
        gpus = IDLEST_FIRST[: len(row.gpus)] if policy.count else ()
    else:
        gpus = IDLEST_FIRST[: policy.count]
    growth = policy.growth if row.growth is None else row.growth
    limit = policy.limit if row.limit is None else row.limit
    words = f"{limit} MiB" if limit else WHOLE
    if growth:
        words = f"grows to {limit} MiB" if limit else GROWS
    is_split = row.limit is None
    return {gpu: " + ".join([words] * (policy.logical_gpus if is_split else 1)) for gpu in sorted(gpus)}


def probes(row: Row, policy: Policy) -> list[int]:
    """Return the MiB of a tensor for each logical GPU in the script's order; 0: no tensor.

    Each tensor is so large that the allocator has to grow to its limit.
    """
    if policy is PLAIN:
        return [0] * 8
    cell = expected(row, policy)
    sizes = []
    for gpu in sorted(cell, key=IDLEST_FIRST.index):
        for words in cell[gpu].split(" + "):
            limit = int(words.split()[2]) if words.startswith("grows to") else 0
            # Without a limit, use a size that fits into no other column's limit.
            sizes.append(limit * 9 // 10 if limit else 1792 if words == GROWS else 0)
    return sizes


def each_cell() -> list[Any]:
    """Return one parameter for each cell. In each turn two cells of a row are due."""
    turns = len(POLICIES) // 2
    return [
        pytest.param(
            row,
            policy,
            id=f"{row.name}-{policy.name}",
            # With xdist, one worker runs the whole row, so its script runs only once without autogpu.
            marks=[pytest.mark.xdist_group(row.name), pytest.mark.turns(turns, (across + down) % turns)],
        )
        for down, row in enumerate(ROWS)
        for across, policy in enumerate(POLICIES)
    ]


class Table:
    """The cells for one TensorFlow version. Each cell runs on its own server."""

    def __init__(self, version: Version, folder: Path, forks: Forks) -> None:
        self._version = version
        self._python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
        self._folder = folder
        self._forks = forks
        self._plain: dict[str, Ran] = {}

    def complaint(self, row: Row, policy: Policy) -> str:
        """Return a cell's faults, one a line, followed by autogpu's messages; ``""`` if there is no fault."""
        if row.name not in self._plain:
            self._plain[row.name] = self._run(row, PLAIN)
        plain, ran = self._plain[row.name], self._run(row, policy)
        cell = expected(row, policy)
        if row.gpus == ():
            # TensorFlow 1.15 creates a context for XLA on each GPU, even if the script uses none.
            cell = driver_grants.granted(plain.calls, GPUS, CONTEXT)
        wanted = driver_grants.in_one_line(cell)
        # If the script failed, compare its error instead of its grants.
        got = ran.error or driver_grants.in_one_line(driver_grants.granted(ran.calls, GPUS, CONTEXT))
        if self._version.number < (2, 0) and wanted == driver_grants.NO_GPU and got.startswith(driver_grants.CONTEXTS):
            # No setting prevents XLA's contexts (docs/memory.md). Only memory counts here.
            got = wanted
        complaints = []
        if plain.exit_status and row.name not in MAY_RAISE_PLAIN:
            complaints.append(f"without autogpu it fails as well: {plain.error}")
        replicas = f"{max(len(probes(row, policy)), 1)} replicas\n" if row.prints_replicas else ""
        if got != wanted:
            complaints.append(f"expected {wanted}, the driver saw {got}")
        elif ran.stdout != replicas:
            complaints.append(f"expected it to print {replicas!r}, it printed {ran.stdout!r}")
        where = f"{row.name} · {policy.name} · {self._version.name}"
        return "\n".join([*(f"{where}: {complaint}" for complaint in complaints), *ran.said]) if complaints else ""

    def _run(self, row: Row, policy: Policy) -> Ran:
        folder = self._folder / f"{row.name}-{policy.name}"
        script = PROLOGUE + (LISTS if row.lists_first else "") + row.script + "\n"
        environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **policy.environ, "PROBES": json.dumps(probes(row, policy))}
        with Machine(self._python, folder, GPUS, self._forks, device_nodes=False, **environ) as machine:
            return machine.run(script)
