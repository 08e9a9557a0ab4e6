"""GPUs and memory that each of ``SCRIPTS`` gets without and with autogpu, on each machine.

Without autogpu, JAX makes a context on every GPU and allocates three quarters of the first, or less if another process
uses it. With autogpu, JAX sees only the chosen GPU and allocates as needed. ``jax.devices()`` then has one GPU instead
of four, so a script that uses more GPUs needs ``AUTOGPU_COUNT``. No script here holds its GPU number in a variable.
"""

from __future__ import annotations

from tests.support.patterns import BOTH_FAIL, FAILS, NEITHER, Case

TAKES_MOST = ("GPU 0 14.6 GiB, contexts on 1, 2, 3", "GPU 3 < 1 GiB")
MOST_OF_ONE = ("GPU 0 18.0 GiB", "GPU 0 < 1 GiB")
ON_EACH = "contexts on 0, 1, 2, 3"
LOOKS = (ON_EACH, "contexts on 3")
LOOKS_AT_ONE = ("contexts on 0",) * 2
GROWS = ("GPU 0 < 1 GiB, contexts on 1, 2, 3", "GPU 3 < 1 GiB")
GROWS_ON_ONE = ("GPU 0 < 1 GiB",) * 2
QUARTER = ("GPU 0 6.0 GiB, contexts on 1, 2, 3", "GPU 3 < 1 GiB")
QUARTER_OF_ONE = ("GPU 0 6.0 GiB", "GPU 0 < 1 GiB")
SECOND = "GPU 1 18.0 GiB, contexts on 0, 2, 3"
ON_ALL = "GPU 0 14.6 GiB, GPU 1 18.0 GiB, GPU 2 18.0 GiB, GPU 3 18.0 GiB"
GIVEN_ONE = "JAX is given the chosen GPU alone, since it makes a context on each that it sees; more with AUTOGPU_COUNT"
NEEDS_TWO = {"AUTOGPU_COUNT": "2"}
FIRST_TWO = "GPU 2 < 1 GiB, GPU 3 < 1 GiB"


def computes(script: str, *, fresh: bool = False) -> Case:
    return Case(script, TAKES_MOST, MOST_OF_ONE, fresh=fresh)


CASES = (
    # Scripts that use one GPU.
    computes("arrays"),
    Case("counts_devices", LOOKS, LOOKS_AT_ONE, prints="1 1 0 1", note=GIVEN_ONE),
    computes("gpu_if_there_is_one"),
    Case("only_cpu_devices", LOOKS, LOOKS_AT_ONE),
    # Only these scripts fail with autogpu but not without it: they use a GPU that JAX does not see.
    Case("second_device", (SECOND, FAILS), BOTH_FAIL, BOTH_FAIL, note=GIVEN_ONE),
    Case("second_device", (SECOND, "GPU 2 < 1 GiB, contexts on 3"), BOTH_FAIL, BOTH_FAIL, NEEDS_TWO),
    Case("mesh_of_two", (ON_EACH, FAILS), BOTH_FAIL, BOTH_FAIL, note=GIVEN_ONE),
    Case("mesh_of_two", (ON_EACH, "contexts on 2, 3"), BOTH_FAIL, BOTH_FAIL, NEEDS_TWO),
    # Scripts that use all GPUs that JAX sees.
    Case("replicated", (ON_ALL, "GPU 3 < 1 GiB"), MOST_OF_ONE, prints="1 1 (8, 4)", note=GIVEN_ONE),
    Case("replicated", (ON_ALL, FIRST_TWO), MOST_OF_ONE, environ=NEEDS_TWO, prints="2 2 (8, 4)", note=GIVEN_ONE),
    # Scripts that use no GPU.
    Case("platforms_cpu_by_config", NEITHER, NEITHER),
    Case("platforms_cpu_by_environ", NEITHER, NEITHER, fresh=True),
    Case("platform_name_cpu", LOOKS, LOOKS_AT_ONE),
    Case("visible_minus_one", NEITHER, NEITHER, fresh=True),
    Case("visible_empty", NEITHER, NEITHER, fresh=True),
    # Scripts that choose platforms or GPUs. JAX's flag lists positions, CUDA_VISIBLE_DEVICES lists cards.
    computes("platforms_cuda_and_cpu", fresh=True),
    Case(
        "visible_two_by_flag",
        ("GPU 1 18.0 GiB, contexts on 2", "GPU 2 < 1 GiB, contexts on 1"),
        BOTH_FAIL,
        None,
        fresh=True,
    ),
    Case("visible_2_after_import", ("GPU 2 18.0 GiB", "GPU 2 < 1 GiB"), NEITHER),
    Case("visible_0_1_before_import", ("GPU 0 14.6 GiB, contexts on 1", "GPU 1 < 1 GiB"), MOST_OF_ONE, fresh=True),
    # Memory. The script's own limit holds. Memory grows up to this limit, unless the script preallocates it.
    Case("preallocate_false", GROWS, GROWS_ON_ONE, fresh=True),
    Case("preallocate_true", (TAKES_MOST[0], "GPU 3 18.0 GiB"), ("GPU 0 18.0 GiB",) * 2),
    Case("fraction_25", QUARTER, QUARTER_OF_ONE),
    Case(
        "fraction_25_after_import",
        ("GPU 0 4.0 GiB, contexts on 1, 2, 3", "GPU 3 4.0 GiB"),
        ("GPU 0 4.0 GiB",) * 2,
        None,
    ),
    Case("fraction_by_newer_name", QUARTER, QUARTER_OF_ONE),
    Case("allocator_platform", GROWS, GROWS_ON_ONE),
    # Processes and threads.
    Case(
        "two_local_processes",
        ("contexts on 0, 1", "contexts on 2, 3"),
        None,
        None,
        note="local_device_ids name positions",
    ),
    Case(
        "children_compute",
        ("GPU 0 14.6 GiB, GPU 1 18.0 GiB, contexts on 2, 3", "GPU 3 < 1 GiB"),
        ("GPU 0 23.1 GiB", "GPU 0 < 1 GiB"),
        note="without autogpu the parent leaves the child no memory on the first; with it they share the chosen one",
    ),
    computes("spawned_workers"),
    computes("forked_before_first_use"),
    computes("threads"),
    Case("clears_backends", ("GPU 0 14.7 GiB, contexts on 1, 2, 3", GROWS[1]), ("GPU 0 23.7 GiB", "GPU 0 < 1 GiB")),
)
