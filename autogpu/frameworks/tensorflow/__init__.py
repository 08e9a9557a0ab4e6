"""TensorFlow, 1.15 and later: the entry points through which it takes GPUs, and what is filled in there.

No tf.config setter is ever called: a setter makes the script's own, ordinary calls raise later. Every way to a GPU ends
in a ConfigProto, and there the assignment is filled in where the script set nothing.
"""

from __future__ import annotations

from autogpu.frameworks.tensorflow.hooks import find_hooks as find_hooks
from autogpu.frameworks.tensorflow.hooks import install_hooks as install_hooks
from autogpu.frameworks.tensorflow.memory import needed_bytes as needed_bytes
from autogpu.frameworks.tensorflow.memory import out_of_memory as out_of_memory
from autogpu.frameworks.tensorflow.memory import peak_bytes as peak_bytes
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH

NAME = "TensorFlow"
DEFAULT_SHARE = 0.94  # 1.15 to 2.21 take 93 to 98 % where memory growth is off
TAKES_FIRST_GPUS = False  # a ConfigProto names any
GROWTH_VARIABLES = {FORCE_GROWTH: "true"}
HAS_LOGICAL_GPUS = True
WANTS_ORDER = False  # its request says more than is known before CUDA
