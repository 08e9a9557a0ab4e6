"""Allocation of GPU memory in an engine's processes: by ``toyflow``, which starts at once, or by TensorFlow."""

from __future__ import annotations

import os

GIB = 1 << 30
# Variables in which launchers set the local rank.
LOCAL_RANKS = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def toyflow():
    """Register ``toyflow`` with autogpu, and import it."""
    import _autogpu_hook

    from autogpu import frameworks

    if "toyflow" not in frameworks.FRAMEWORKS:
        _autogpu_hook.frameworks += ("toyflow",)
        frameworks.FRAMEWORKS["toyflow"] = "autogpu_toyflow:Toyflow"
    import toyflow

    return toyflow


def take(gib: float, framework: str = "toyflow", more_gib: float = 0) -> list[int]:
    """Allocate ``gib``, or the limit if that is less, on each GPU of this process; return CUDA's ordinals.

    TensorFlow allocates memory by regions. Each region is twice as large as the one before, and the limit cuts off the
    last one. So TensorFlow allocates up to the limit for a tensor that is larger than half the limit. It refuses no
    allocation, which would take it ten seconds.
    """
    if framework == "toyflow":
        return toyflow().take(round(gib * GIB), **({"more": round(more_gib * GIB)} if more_gib else {}))
    import tensorflow as tf

    size, rank = [round(gib * 1024), 1 << 18], next((int(os.environ[n]) for n in LOCAL_RANKS if n in os.environ), 0)
    if framework == "session_of_each_rank":
        options = tf.compat.v1.GPUOptions(visible_device_list=str(rank))
        with tf.Graph().as_default(), tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(gpu_options=options)) as s:
            s.run(tf.raw_ops.Empty(shape=size, dtype=tf.float32).op)
        return [0]
    each = {"gpu_of_each_rank": 1, "two_gpus_of_each_rank": 2}.get(framework)
    if each:
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[each * rank : each * (rank + 1)], "GPU")
    gpus = tf.config.list_logical_devices("GPU")
    for gpu in gpus:
        with tf.device(gpu.name):
            tf.raw_ops.Empty(shape=size, dtype=tf.float32)
    tf.zeros((2, 2))
    return list(range(len(gpus)))
