"""What each script of ``scripts`` is granted without and with autogpu, on each machine.

The line that reads ``SAYS_NOTHING`` is what most scripts are: they say ``cuda``, and get the idlest GPU instead of
PyTorch's first, which is at work for somebody else.
"""

from __future__ import annotations

from tests.support.patterns import BOTH_FAIL, NEITHER, Case, Difference

SAYS_NOTHING = ("GPU 0 < 1 GiB", "GPU 3 < 1 GiB")
ONLY_ONE = ("GPU 0 < 1 GiB", "GPU 0 < 1 GiB")
SECOND = ("GPU 1 < 1 GiB", "GPU 3 < 1 GiB")
FIRST_TWO = ("GPU 0 < 1 GiB, GPU 1 < 1 GiB", "GPU 2 < 1 GiB, GPU 3 < 1 GiB")
ALL = ("GPU 0 < 1 GiB, GPU 1 < 1 GiB, GPU 2 < 1 GiB, GPU 3 < 1 GiB",) * 2
THIRD_CARD = ("GPU 2 < 1 GiB",) * 2
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


def falls_back(script: str, **fields: object) -> Case:
    """A script that runs on the CPU where there is no GPU."""
    return Case(script, SAYS_NOTHING, ONLY_ONE, **fields)  # type: ignore[arg-type]


def insists(script: str, **fields: object) -> Case:
    """A script that says ``cuda`` without asking; without a GPU it fails."""
    return Case(script, SAYS_NOTHING, ONLY_ONE, BOTH_FAIL, **fields)  # type: ignore[arg-type]


CASES = (
    # Which GPU.
    Case("only_imports", NEITHER, NEITHER),
    Case("only_asks", NEITHER, NEITHER),
    falls_back("device_if_available"),
    insists("cuda_method"),
    insists("legacy_tensor_type"),
    insists("default_device"),
    insists("generator_first", note="C++ starts CUDA: by the order of the import, and claimed with its context"),
    insists("cpu_backward_first", note="as above: the engine counts the GPUs for its threads"),
    falls_back("accelerator"),
    falls_back("seeds"),
    falls_back("nvml_based_check", fresh=True),
    # A number is a position in autogpu's order, and the idlest GPU comes where the script's one number says.
    Case("to_cuda_1", SECOND, BOTH_FAIL, BOTH_FAIL),
    Case("argument_gpu_2", ("GPU 2 < 1 GiB", "GPU 3 < 1 GiB"), BOTH_FAIL, BOTH_FAIL),
    Case("set_device_1", SECOND, BOTH_FAIL, BOTH_FAIL),
    Case("device_context_1", SECOND, BOTH_FAIL, BOTH_FAIL),
    Case(
        "towers_on_0_and_1",
        tuple(f"{two}, contexts on {others}" for two, others in zip(FIRST_TWO, ("2, 3", "0, 1"))),  # type: ignore[arg-type]
        BOTH_FAIL,
        BOTH_FAIL,
        note="PyTorch itself makes contexts on the others, when tensors are copied between two",
    ),
    Case("checkpoint_of_another_gpu", FIRST_TWO, BOTH_FAIL, BOTH_FAIL),
    # The script's own CUDA_VISIBLE_DEVICES is a list of cards.
    Case("visible_2_before_import", THIRD_CARD, BOTH_FAIL, BOTH_FAIL, fresh=True),
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
    # All that there are.
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
        differs=Difference({"four-gpus": "4 cuda:0"}, "the first in autogpu's order is an idle one"),
        note="mem_get_info makes a context on each GPU that it is asked about",
    ),
    # Processes and threads.
    Case("ddp_gloo", FIRST_TWO, ONLY_ONE, launcher=TORCHRUN),
    Case("ddp_nccl", FIRST_TWO, None, BOTH_FAIL, launcher=TORCHRUN, note="NCCL's C++ counts the GPUs first"),
    Case("spawn_set_device", FIRST_TWO, BOTH_FAIL, BOTH_FAIL),
    Case("fork_before_cuda", ("GPU 0 < 1 GiB", "GPU 2 < 1 GiB, GPU 3 < 1 GiB"), ONLY_ONE, note="two that compute"),
    insists("fork_after_cuda"),
    falls_back("child_evaluates"),
    falls_back("data_loader"),
    falls_back("threads"),
    # Work, and what is kept of it.
    falls_back("adam_training"),
    falls_back("exits_with_3", exit_status=3),
    # Memory.
    insists("memory_fraction"),
    insists("allocator_settings", fresh=True),
    Case("allocator_fraction", ("contexts on 0", "contexts on 3"), ("contexts on 0",) * 2, BOTH_FAIL, fresh=True),
    Case(
        "out_of_memory_retried",
        ("GPU 0 4.0 GiB", "GPU 3 16.0 GiB"),
        ("GPU 0 16.0 GiB",) * 2,
        None,
        differs=Difference({"four-gpus": "16 cuda:0"}, "there is more on an idle GPU than beside somebody else"),
    ),
)
