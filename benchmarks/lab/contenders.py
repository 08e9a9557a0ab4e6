"""The contenders of the comparison, keyed by name, and the packages that some of them call."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Callable, Sequence

from benchmarks.lab.day import Job
from benchmarks.lab.others import ByHand, Exclusive, GpuTil, Nvitop
from benchmarks.lab.rules import Autogpu

# GPUtil imports distutils. Python 3.12 removed it, and setuptools before 80 still has it.
PACKAGES = ("nvitop", "gputil", "setuptools<80")

DEFAULT, FORGETFUL, ORACLE = "autogpu", "autogpu, no history", "true needs"
LEGEND = {
    "by hand": "nvidia-smi and CUDA_VISIBLE_DEVICES: the card with the least memory in use, growth on, no waiting; who "
    "starts several jobs at once starts them on that one card",
    "by hand, spread": "the same, where each of several jobs is put on another card, the emptiest first",
    "nvitop": "select_devices(max_count=1) of nvitop 1.7 itself, with min_free_memory where a need is stated",
    "GPUtil": "getAvailability() of GPUtil 1.4 itself: load and memory below one half, else again in 15 minutes",
    "exclusive": "a whole card for each, first come, first served, as with Slurm's --gres=gpu:1 or safe_gpu in a loop",
    DEFAULT: "its defaults",
    FORGETFUL: "AUTOGPU_HISTORY=false: a job also starts where its script's last runs took more than is free",
    "autogpu, wait": "AUTOGPU_BUSY=wait",
    ORACLE: "AUTOGPU_BUSY=wait, and every job states to the byte what it will take, as nobody can",
}


def use_packages(folders: Sequence[str]) -> None:
    sys.path.extend(folder for folder in folders if folder not in sys.path)


@functools.lru_cache(maxsize=1)
def _nvitop() -> Any:
    from nvitop import select_devices

    return select_devices


@functools.lru_cache(maxsize=1)
def _gputil() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if sys.version_info >= (3, 12):
            import setuptools  # noqa: F401  (brings distutils back)
        import GPUtil
    return GPUtil


# Functions that make a new contender for one day from the jobs of earlier days.
MADE: dict[str, Callable[[Sequence[Job]], Any]] = {
    "by hand": lambda _: ByHand(spreads=False),
    "by hand, spread": lambda _: ByHand(spreads=True),
    "nvitop": lambda _: Nvitop(_nvitop()),
    "GPUtil": lambda _: GpuTil(_gputil()),
    "exclusive": lambda _: Exclusive(),
    DEFAULT: lambda earlier: Autogpu(earlier=earlier),
    FORGETFUL: lambda _: Autogpu(has_history=False),
    "autogpu, wait": lambda earlier: Autogpu("wait", earlier=earlier),
    ORACLE: lambda _: Autogpu("wait", has_true_needs=True),
}
