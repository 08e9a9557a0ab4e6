"""Small copies of public code that reads CUDA_VISIBLE_DEVICES.

Tests also paste the text of this module into a script. The readers of robosuite, returnn and tensorpack imitate these
libraries, which are too large to install.
"""

import json
import os

VISIBLE = "CUDA_VISIBLE_DEVICES"


def egl_device_of_robosuite():
    """Choose the first device (robosuite/renderers/context/egl_context.py)."""
    selected = os.environ.get(VISIBLE)
    if selected is None:
        return 0
    if selected.isdigit():
        return int(selected)
    numbers = [int(number) for number in selected.split(",")]
    return numbers[0]


def egl_check_of_robosuite(device="0"):
    """Check MUJOCO_EGL_DEVICE_ID (robosuite/utils/binding_utils.py)."""
    visible = os.environ.get(VISIBLE, "")
    assert not visible or device in visible
    return "ok"


def devices_of_returnn():
    """Map TensorFlow's GPU numbers to nvidia-smi's numbers (returnn/tf/util/basic.py)."""
    if VISIBLE in os.environ:
        return dict(enumerate(int(number) for number in os.environ[VISIBLE].split(",") if number))
    return None


def count_of_tensorpack():
    """Count the GPUs (tensorpack/utils/gpu.py). If the variable is unset, tensorpack asks nvidia-smi instead."""
    visible = os.environ.get(VISIBLE)
    return None if visible is None else len(visible.split(","))


def device_by_digits():
    """Choose the first entry that is a number, or the CPU if no entry is a number."""
    if VISIBLE not in os.environ:
        return "the freest"
    numbers = [entry for entry in os.environ[VISIBLE].split(",") if entry.isdigit()]
    return "cuda:" + numbers[0] if numbers else "cpu"


def nvml_index(ordinal=0):
    visible = os.environ.get(VISIBLE)
    return ordinal if not visible else int(visible.split(",")[ordinal])


def index_of_id():
    """Return the list index of a GPU that an engine granted (ray/air/_internal/device_manager)."""
    visible = os.environ.get(VISIBLE)
    return 0 if not visible else visible.split(",").index(visible.split(",")[0])


READERS = {
    "length, 1 by default": lambda: len(os.environ.get(VISIBLE, "0").split(",")),
    "tensorpack": count_of_tensorpack,
    "int of the first, 0 by default": lambda: int(os.environ.get(VISIBLE, "0").split(",")[0]),
    "returnn": devices_of_returnn,
    "int of the whole text": lambda: int(os.environ.get(VISIBLE, "0")),
    "robosuite": egl_device_of_robosuite,
    "robosuite with MUJOCO_EGL_DEVICE_ID=0": egl_check_of_robosuite,
    "only digits, else the CPU": device_by_digits,
    "is it set?": lambda: VISIBLE in os.environ,
    "ordinal 0 in NVML": nvml_index,
    "for a child, 0 by default": lambda: os.environ.get(VISIBLE, "0"),
    "index of an engine's id": index_of_id,
    "printed": lambda: f"{VISIBLE}={os.environ.get(VISIBLE)}",
    "port": lambda: 29500 + int(os.environ.get(VISIBLE, "0").split(",")[0]),
}


def finding(reader):
    """Return the reader's result as text, or the name of the exception that it raises."""
    try:
        return str(reader())
    except (ValueError, AssertionError) as error:
        return type(error).__name__


def show():
    print(json.dumps({name: finding(reader) for name, reader in READERS.items()}), flush=True)
