"""The simulated GPU server under unmodified JAX. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.support import framework_environments

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

MIB, GIB = 2**20, 2**30
CONTEXT = 256 * MIB
ARENA = 512 * MIB  # what only an allocator takes at once; workspaces are smaller

PRELUDE = """
import json
import jax
import jax.numpy as jnp
import numpy as np

def say(*values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture(
    scope="module",
    params=framework_environments.JAXES,
    ids=lambda version: f"jax-{version.version}-cuda{version.cuda}",
)
def jax_python(request) -> Path:
    return framework_environments.jax(request.param)


@pytest.fixture
def four(jax_python: Path, tmp_path: Path) -> Iterator[Server]:
    gpus = [Gpu(name="NVIDIA A100", memory="40GiB", compute_capability="8.0", multiprocessors=108)] * 4
    with Server(gpus, folder=tmp_path, context=CONTEXT, device_nodes=True) as server:
        yield server


@pytest.fixture
def run(jax_python: Path, four: Server, tmp_path: Path):
    def run_program(program: str, **environ: str) -> list:
        file = tmp_path / "program.py"
        file.write_text(PRELUDE + program)
        done = four.run([str(jax_python), str(file)], environ=environ, timeout=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run_program


def arenas(server: Server) -> dict[int | None, int | None]:
    """By GPU, what its allocator took at once."""
    return {call.gpu: call.bytes for call in server.calls(call="allocate") if (call.bytes or 0) >= ARENA}


def contexts(server: Server) -> list[list[int]]:
    return sorted(sorted(gpus) for gpus in server.contexts().values())


def test_an_import_asks_for_nothing(four, run):
    assert run("") == []
    assert four.calls() == []


def test_the_list_of_devices_makes_a_context_on_each_and_takes_nothing_more(four, run):
    assert run("say([device.device_kind for device in jax.devices()])") == [[["NVIDIA A100"] * 4]]
    assert contexts(four) == [[0, 1, 2, 3]]
    assert arenas(four) == {}


def test_the_first_array_takes_three_quarters_of_its_gpu_until_the_process_ends(four, jax_python):
    program = "import sys, jax; x = jax.numpy.zeros(10); print(flush=True); sys.stdin.readline()"
    holder = four.popen([str(jax_python), "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert arenas(four) == {0: 30 * GIB}
    assert four.used_bytes(0) >= CONTEXT + 30 * GIB
    assert [four.used_bytes(gpu) for gpu in (1, 2, 3)] == [CONTEXT] * 3
    holder.communicate("\n", timeout=60)
    assert [four.used_bytes(gpu) for gpu in range(4)] == [0] * 4


def test_beside_others_less_is_taken_until_it_fits(four, run):
    four.change(0, processes={5004242: "20GiB"})
    run("jnp.zeros(10)")
    refused = [call.bytes for call in four.calls(call="refused")]
    assert refused[0] == 30 * GIB
    assert 15 * GIB < arenas(four)[0] < 20 * GIB


def test_only_visible_gpus_are_used(four, run):
    assert run("jnp.zeros(10); say(jax.device_count())", CUDA_VISIBLE_DEVICES="3,1") == [[2]]
    assert contexts(four) == [[1, 3]]
    assert list(arenas(four)) == [3]


def test_a_platform_of_cpus_asks_for_nothing(four, run):
    assert run("say(jnp.zeros(3).tolist(), jax.default_backend())", JAX_PLATFORMS="cpu") == [[[0, 0, 0], "cpu"]]
    assert four.calls() == []


def test_a_fraction_is_taken_and_told(four, run):
    program = """
jnp.zeros(10)
say(jax.devices()[0].memory_stats()["bytes_limit"])
"""
    assert run(program, XLA_PYTHON_CLIENT_MEM_FRACTION="0.25") == [[10 * GIB]]
    assert arenas(four) == {0: 10 * GIB}


def test_without_preallocation_memory_grows(four, run):
    run("jnp.zeros(10)", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert arenas(four) == {}
    assert four.calls(call="allocate") != []


def test_what_does_not_fit_is_an_error_and_no_crash(run):
    program = """
try:
    jax.device_put(np.empty(2**30, dtype=np.uint8)).block_until_ready()
except Exception as error:
    say(str(error).split(":")[0])
"""
    assert run(program, XLA_PYTHON_CLIENT_MEM_FRACTION="0.02") == [["RESOURCE_EXHAUSTED"]]


def test_copies_arrive(run):
    program = "say([np.asarray(jax.device_put(np.arange(3), device)).tolist() for device in jax.devices()])"
    assert run(program) == [[[[0, 1, 2]] * 4]]


@pytest.mark.parametrize(
    ("layer", "shape", "kernel"),
    [("x @ k", (4, 8), (8, 2)), ("jax.lax.conv(x, k, (1, 1), 'SAME')", (2, 3, 16, 16), (8, 3, 3, 3))],
    ids=["linear", "convolution"],
)
def test_a_model_is_trained_on_one_gpu(four, run, layer, shape, kernel):
    program = f"""
step = jax.jit(jax.grad(lambda k, x: jnp.mean(({layer}) ** 2)))
k, x = jnp.ones({kernel}), jnp.ones({shape})
for _ in range(3):
    k = k - 0.1 * step(k, x)
say(list(np.asarray(k).shape))
"""
    assert run(program) == [[list(kernel)]]
    assert list(arenas(four)) == [0]


def test_a_parallel_map_has_every_gpu(four, run):
    program = "say(jax.pmap(lambda x: jax.lax.psum(x, 'i'), axis_name='i')(jnp.ones((4, 8))).shape)"
    assert run(program) == [[[4, 8]]]
    assert arenas(four) == dict.fromkeys(range(4), 30 * GIB)


def test_a_sharded_array_has_every_gpu(four, run):
    program = """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
x = jax.device_put(np.ones((8, 8), "float32"), sharding)
say(jax.jit(lambda x: (x * 2).sum(axis=1))(x).shape)
"""
    assert run(program) == [[[8]]]
    assert arenas(four) == dict.fromkeys(range(4), 30 * GIB)
