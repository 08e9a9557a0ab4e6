"""Expected grants for ``SCRIPTS``, without and with autogpu, on each machine.

Most scripts use ``cuda`` without a number, and are granted ``SAYS_NOTHING``: the idlest GPU instead of PyTorch's first,
on which another user's process runs.
"""

from __future__ import annotations

from tests.support.patterns import BOTH_FAIL, NEITHER, Case

SAYS_NOTHING = ("GPU 0 < 1 GiB", "GPU 3 < 1 GiB")
ONLY_ONE = ("GPU 0 < 1 GiB",) * 2
SECOND = ("GPU 1 < 1 GiB", "GPU 3 < 1 GiB")
FIRST_TWO = ("GPU 0 < 1 GiB, GPU 1 < 1 GiB", "GPU 2 < 1 GiB, GPU 3 < 1 GiB")
ALL = ("GPU 0 < 1 GiB, GPU 1 < 1 GiB, GPU 2 < 1 GiB, GPU 3 < 1 GiB",) * 2
THIRD_CARD = ("GPU 2 < 1 GiB",) * 2
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


def falls_back(script: str, *, fresh: bool = False) -> Case:
    """Return the case of a script that uses the CPU if there is no GPU."""
    return Case(script, SAYS_NOTHING, ONLY_ONE, fresh=fresh)


def insists(script: str, *, fresh: bool = False) -> Case:
    """Return the case of a script that uses ``cuda`` without a check, and fails if there is no GPU."""
    return Case(script, SAYS_NOTHING, ONLY_ONE, BOTH_FAIL, fresh=fresh)


CASES = (
    # Choice of a GPU.
    Case("only_asks", NEITHER, NEITHER),
    falls_back("device_if_available"),
    insists("cuda_method"),
    insists("legacy_tensor_type"),
    insists("default_device"),
    falls_back("accelerator"),
    falls_back("seeds"),
    falls_back("nvml_based_check", fresh=True),
    # A number is a position in autogpu's order. If the script uses one number, autogpu puts the idlest GPU there.
    Case("set_device_1", SECOND, BOTH_FAIL, BOTH_FAIL),
    Case("device_context_1", SECOND, BOTH_FAIL, BOTH_FAIL),
    Case(
        "towers_on_0_and_1",
        (f"{FIRST_TWO[0]}, contexts on 2, 3", f"{FIRST_TWO[1]}, contexts on 0, 1"),
        BOTH_FAIL,
        BOTH_FAIL,
        note="PyTorch itself makes contexts on the others, when tensors are copied between two",
    ),
    Case("checkpoint_of_another_gpu", FIRST_TWO, BOTH_FAIL, BOTH_FAIL),
    # If the script sets CUDA_VISIBLE_DEVICES, its numbers are physical cards.
    Case("visible_2_after_import", THIRD_CARD, BOTH_FAIL, BOTH_FAIL),
    Case("visible_argument_0", ONLY_ONE, ONLY_ONE, note="named, and so taken, with a line that says what is idle"),
    Case("visible_by_nvml", ("GPU 1 < 1 GiB",) * 2, ONLY_ONE, note="its first of the idle ones"),
    Case("visible_minus_one_after_import", NEITHER, NEITHER),
    Case(
        "visible_1_after_asking",
        ("GPU 0 < 1 GiB", "GPU 1 < 1 GiB"),
        None,
        note="asking has not started CUDA, and so the script's word counts",
    ),
    Case(
        "visible_2_3_before_import",
        ("GPU 2 < 1 GiB", "GPU 3 < 1 GiB"),
        NEITHER,
        fresh=True,
        note="asking orders nothing; at CUDA's start the idlest of the script's own list is its first",
    ),
    # All GPUs.
    Case(
        "data_parallel",
        ALL,
        ONLY_ONE,
        BOTH_FAIL,
        note="it takes all that PyTorch counts; visible = 'chosen' counts the chosen only (test_policies.py)",
    ),
    Case("tensor_on_each", ALL, ONLY_ONE, note="the script names each"),
    Case(
        "free_memory_of_all",
        ("GPU 1 < 1 GiB, contexts on 0, 2, 3", "GPU 3 < 1 GiB, contexts on 0, 1, 2"),
        ONLY_ONE,
        prints="4 cuda:0",
        note="the first in autogpu's order is an idle one; mem_get_info makes a context on each that it is asked about",
    ),
    # Processes.
    Case("ddp_gloo", FIRST_TWO, ONLY_ONE, launcher=TORCHRUN),
    Case("ddp_nccl", FIRST_TWO, None, BOTH_FAIL, launcher=TORCHRUN, note="NCCL's C++ counts the GPUs first"),
    Case("fork_before_cuda", ("GPU 0 < 1 GiB", FIRST_TWO[1]), ONLY_ONE, note="two that compute"),
    insists("fork_after_cuda"),
    # Memory.
    insists("memory_fraction"),
    insists("allocator_settings", fresh=True),
    Case("allocator_fraction", ("contexts on 0", "contexts on 3"), ("contexts on 0",) * 2, BOTH_FAIL, fresh=True),
)
