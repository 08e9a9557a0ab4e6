"""Scripts that name GPUs after TensorFlow has started with fewer: nothing hangs, and one message suggests a fix."""

import re

import pytest

# Ways to create TensorFlow's context before the script names its GPUs.
STARTS = {
    "operation": "tf.zeros([1])",
    "growth-snippet": """
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.list_logical_devices("GPU")
""",
    "strategy": "tf.distribute.MirroredStrategy()",
}

STRATEGIES = {
    "mirrored": "strategy = tf.distribute.MirroredStrategy(['/gpu:0', '/gpu:1'])",
    "mirrored-hierarchical": "strategy = tf.distribute.MirroredStrategy(\n"
    "    ('GPU:0', 'GPU:1'), cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())",
    "mirrored-nccl": "strategy = tf.distribute.MirroredStrategy(\n"
    "    devices=['/gpu:1', '/gpu:0'], cross_device_ops=tf.distribute.NcclAllReduce())",
    "mirrored-v1": "strategy = tf.compat.v1.distribute.MirroredStrategy(['/gpu:2', '/gpu:3'])",
    "central-storage": "strategy = tf.distribute.experimental.CentralStorageStrategy(['/gpu:0', '/gpu:1'])",
    "one-device": "strategy = tf.distribute.OneDeviceStrategy('/gpu:1')",
}
# OneDeviceStrategy names a single device, and TensorFlow uses another device if that one doesn't exist.
LINE = {"one-device": r"the script names '/gpu:1' after TensorFlow has started with 1 GPU; .* AUTOGPU_COUNT=2$"}
REPLICAS = r"Strategy(V1)? has 1 replica instead of 2: TensorFlow had started with 1 GPU before; .* AUTOGPU_COUNT=2$"

REDUCE = """
def step():
    context = tf.distribute.get_replica_context()
    return context.all_reduce("sum", tf.ones([4])) if hasattr(context, "all_reduce") else tf.ones([4])
@tf.function
def train():
    return strategy.run(step)
train()
print("done", strategy.num_replicas_in_sync)
"""

FIT = """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones([8, 4]), tf.ones([8, 1]), batch_size=4, epochs=1, verbose=0)
print("done", strategy.num_replicas_in_sync)
"""


@pytest.fixture
def run(with_autogpu, version, lease_folder):
    if not version.launches_kernels:
        pytest.skip(f"no kernel of {version.name} runs on a simulated GPU")

    def run(*parts, **environ):
        return with_autogpu("\n".join(["import tensorflow as tf", *parts]), TF_CPP_MIN_LOG_LEVEL="3", **environ)

    return run


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_that_names_its_gpus_late_has_one_replica(run, strategy):
    ran = run(STARTS["operation"], STRATEGIES[strategy], REDUCE)
    assert ran.stdout.splitlines()[-1] == "done 1"
    _, late = ran.said
    assert re.search(LINE.get(strategy, REPLICAS), late)


@pytest.mark.parametrize("start", STARTS)
def test_keras_trains_with_a_strategy_that_names_its_gpus_late(run, start):
    ran = run(STARTS[start], STRATEGIES["mirrored"], FIT)
    assert ran.stdout.splitlines()[-1] == "done 1"
    assert re.search(REPLICAS, ran.said[-1])


@pytest.mark.parametrize("strategy", ["mirrored", "mirrored-v1", "central-storage"])
def test_strategy_that_names_its_gpus_late_uses_the_gpus_of_the_process(run, strategy):
    show = "print(sorted(device[-5:] for device in strategy.extended.worker_devices))"
    ran = run(STARTS["operation"], STRATEGIES[strategy], show, AUTOGPU_COUNT="2")
    assert ran.stdout.splitlines()[-1] == "['GPU:0', 'GPU:1']"
    # /gpu:2 and /gpu:3 are named too late, which prints a line, although each of them gets a GPU.
    assert len(ran.said) == (2 if strategy == "mirrored-v1" else 1)
