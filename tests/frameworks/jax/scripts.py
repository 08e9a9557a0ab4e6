"""Typical JAX scripts, keyed by name."""

from tests.support.patterns import setting


def script(*lines: str, before: str = "") -> str:
    return "\n".join((f"{before}import jax", *lines, ""))


ONES = "print(jax.numpy.ones(3).devices())"
CHILD = """import subprocess, sys
child = [sys.executable, "-c", "import jax; print(jax.numpy.ones(3).devices())"]
print(subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout)"""

POOL = """
import multiprocessing
import warnings
import jax
warnings.simplefilter("ignore")

def work(number):
    return str(jax.numpy.ones(3).devices())

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(pool.map(work, range(2)))
"""

REPLICATED = """
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(jax.devices(), ("data",))
x = jax.device_put(jax.numpy.ones((8, 4)), NamedSharding(mesh, PartitionSpec("data")))
y = jax.jit(lambda x: x + 1)(x)
print(mesh.shape["data"], len(y.devices()), y.shape)
"""

TWO_LOCAL_PROCESSES = """
import socket
import subprocess
import sys
import jax
if len(sys.argv) == 1:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    print([rank.communicate()[0] for rank in ranks])
    sys.exit(max(rank.returncode for rank in ranks))
rank = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=rank, local_device_ids=[rank])
print(jax.process_index(), jax.local_device_count(), jax.device_count())
"""

SCRIPTS = {
    "allocator_platform": script(ONES, before=setting(XLA_PYTHON_CLIENT_ALLOCATOR="platform")),
    "arrays": script("x = jax.numpy.ones((64, 64))", "y = x @ x", "print(y.shape, y.devices())"),
    "children_compute": script(ONES, CHILD),
    "clears_backends": script("from jax.extend.backend import clear_backends", ONES, "clear_backends()", ONES),
    "counts_devices": script(
        "print(jax.device_count(), jax.local_device_count(), jax.process_index(), jax.process_count())"
    ),
    "forked_before_first_use": POOL.format(method="fork"),
    "fraction_25": script(ONES, before=setting(XLA_PYTHON_CLIENT_MEM_FRACTION=".25")),
    "fraction_25_after_import": script(
        setting(XLA_PYTHON_CLIENT_MEM_FRACTION=".25", XLA_PYTHON_CLIENT_PREALLOCATE="false"),
        "x = jax.numpy.zeros(4 << 30, dtype='uint8')",
        "print(x.devices(), jax.local_devices()[0].memory_stats()['bytes_limit'] >> 20)",
    ),
    "fraction_by_newer_name": script(ONES, before=setting(XLA_CLIENT_MEM_FRACTION=".25")),
    "gpu_if_there_is_one": script(
        "try:",
        "    device = jax.devices('gpu')[0]",
        "except RuntimeError:",
        "    device = jax.devices('cpu')[0]",
        "print(jax.device_put([1.0, 2.0], device)[0].devices())",
    ),
    "mesh_of_two": script("print(jax.make_mesh((2,), ('data',)).size)"),
    "only_cpu_devices": script("cpu = jax.devices('cpu')[0]", "print(cpu, jax.device_put(1.0, cpu).devices())"),
    "platform_name_cpu": script("jax.config.update('jax_platform_name', 'cpu')", ONES),
    "platforms_cpu_by_config": script("jax.config.update('jax_platforms', 'cpu')", "print(jax.devices())", ONES),
    "platforms_cpu_by_environ": script("print(jax.devices())", ONES, before=setting(JAX_PLATFORMS="cpu")),
    "platforms_cuda_and_cpu": script("print(jax.default_backend())", ONES, before=setting(JAX_PLATFORMS="cuda,cpu")),
    "preallocate_false": script(ONES, before=setting(XLA_PYTHON_CLIENT_PREALLOCATE="false")),
    "preallocate_true": script(ONES, before=setting(XLA_PYTHON_CLIENT_PREALLOCATE="true")),
    "replicated": REPLICATED,
    "second_device": script("print(jax.device_put(1.0, jax.devices()[1]).devices())"),
    "spawned_workers": POOL.format(method="spawn"),
    "threads": script(
        "from concurrent.futures import ThreadPoolExecutor",
        "print(list(ThreadPoolExecutor(4).map(lambda n: str(jax.numpy.ones((16, 16)).devices()), range(4))))",
    ),
    "two_local_processes": TWO_LOCAL_PROCESSES,
    "visible_0_1_before_import": script(
        "print(os.environ['CUDA_VISIBLE_DEVICES'])", ONES, before=setting(CUDA_VISIBLE_DEVICES="0,1")
    ),
    "visible_2_after_import": script(
        setting(CUDA_VISIBLE_DEVICES="2"), "print(os.environ['CUDA_VISIBLE_DEVICES'], jax.device_count())", ONES
    ),
    "visible_empty": script(ONES, before=setting(CUDA_VISIBLE_DEVICES="")),
    "visible_minus_one": script(ONES, before=setting(CUDA_VISIBLE_DEVICES="-1")),
    "visible_two_by_flag": script(
        "jax.config.update('jax_cuda_visible_devices', '1,2')", ONES, "print(jax.device_count())"
    ),
}
