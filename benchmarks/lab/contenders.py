"""The contenders of the comparison, keyed by name, and the packages that some of them call."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from benchmarks.lab.day import Job
from benchmarks.lab.others import ByHand, Exclusive, GpuTil, Nvitop
from benchmarks.lab.rules import Autogpu

# GPUtil imports distutils. Python 3.12 removed it, and setuptools before 80 still has it.
PACKAGES = ("nvitop", "gputil", "setuptools<80")

DEFAULT, FORGETFUL, ORACLE = "autogpu", "autogpu, no history", "true needs"
LEGEND = {
    "by hand": "nvidia-smi and CUDA_VISIBLE_DEVICES: the card with the least memory in use, growth on, no "
    "waiting; several jobs started at once go to the same card",
    "by hand, spread": "the same, but several jobs started at once go to different cards, the emptiest first",
    "nvitop": "nvitop 1.7's own select_devices(max_count=1), with a stated need as min_free_memory",
    "GPUtil": "GPUtil 1.4's own getAvailability(): load and memory below one half, else a new try in 15 minutes",
    "exclusive": "a whole card for each job, first come, first served, as with Slurm's --gres=gpu:1 or safe_gpu",
    DEFAULT: "autogpu with its defaults",
    FORGETFUL: "AUTOGPU_HISTORY=false: a job also starts on a card with less memory left than its script's last runs "
    "took",
    "autogpu, wait": "AUTOGPU_BUSY=wait",
    ORACLE: "AUTOGPU_BUSY=wait, and every job states its peak memory to the byte, which no real user can",
}


# Functions that make a new contender for one day from the jobs of earlier days.
MADE: dict[str, Callable[[Sequence[Job]], Any]] = {
    "by hand": lambda _: ByHand(spreads=False),
    "by hand, spread": lambda _: ByHand(spreads=True),
    "nvitop": lambda _: Nvitop(),
    "GPUtil": lambda _: GpuTil(),
    "exclusive": lambda _: Exclusive(),
    DEFAULT: lambda earlier: Autogpu(earlier=earlier),
    FORGETFUL: lambda _: Autogpu(has_history=False),
    "autogpu, wait": lambda earlier: Autogpu("wait", earlier=earlier),
    ORACLE: lambda _: Autogpu("wait", has_true_needs=True),
}
