"""autogpu's main promises, on every version of TensorFlow, checked by the calls to the driver."""

import pytest

from tests.support.tensorflow_runner import GIB, MIB, script

IDLEST = 3
# Empty() writes no memory and so needs no kernel: some versions have no kernel that runs on a simulated GPU.
EAGER = "tf.compat.v1.enable_eager_execution()"
OPERATION = "with tf.device('/GPU:0'):\n    x = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)"
SAYS_GPU_3 = "autogpu: GPU 3 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 4; memory allocated as needed"


def test_importing_tensorflow_starts_no_cuda_and_prints_nothing(with_autogpu):
    ran = with_autogpu(script("print('imported')"), fresh=True)
    assert (ran.stdout, ran.said) == ("imported\n", [])
    assert [call.call for call in ran.calls if call.call in ("cuInit", "context")] == []


def test_listing_gpus_makes_no_context_and_prints_nothing(with_autogpu):
    ran = with_autogpu(script("print(len(tf.config.experimental.list_physical_devices('GPU')))"))
    assert (ran.stdout, ran.said, ran.contexts) == ("4\n", [], [])


def test_script_without_settings_gets_the_idlest_gpu_with_memory_growth(with_autogpu):
    ran = with_autogpu(script(EAGER, OPERATION), fresh=True)
    assert (ran.contexts, list(ran.allocated)) == ([IDLEST], [IDLEST])
    assert ran.allocated[IDLEST] <= 64 * MIB
    assert ran.said == [SAYS_GPU_3]


# PyTorch and JAX can't be tested like this: their first use of a GPU imports modules, which fails while Python exits.
AT_THE_END = """
class Model:
    def __del__(self, use=tf.config.experimental.list_logical_devices, os=os, leases=os.environ["AUTOGPU_LEASE_DIR"]):
        use("GPU")
        names = os.listdir(leases)
        os.write(1, b"".join(name[:4].encode() for name in names if name.startswith("job.")))
model = Model()
"""


def test_first_use_of_a_gpu_while_python_exits_claims_it_and_prints_a_line(with_autogpu, version):
    if version.number == (2, 4):
        pytest.skip(f"{version.name} can't use a GPU then: its own modules are gone")
    ran = with_autogpu(script(EAGER, AT_THE_END), fresh=True)
    assert (ran.stdout, ran.said, ran.contexts) == ("job.", [SAYS_GPU_3], [IDLEST])


def test_autogpu_switched_off_leaves_tensorflow_as_it_is(with_autogpu):
    ran = with_autogpu(script(EAGER, OPERATION), fresh=True, AUTOGPU="0")
    assert (ran.contexts, ran.said) == ([0, 1, 2, 3], [])
    assert max(ran.allocated.values()) > 20 * GIB


def test_out_of_memory_error_prints_the_reason_and_a_remedy(with_autogpu):
    fill = "kept = [tf.raw_ops.Empty(shape=[1024, 1 << 18], dtype=tf.float32) for _ in range(3)]"
    ran = with_autogpu(script(EAGER, fill), exit_status=1, fresh=True, AUTOGPU_LIMIT="2GiB")
    _, first, second = ran.said
    assert "limited to 2.0 GiB by memory.limit (AUTOGPU_LIMIT); had " in first
    assert second.startswith("autogpu: for more memory: AUTOGPU_LIMIT=")
    assert ran.stderr.count("Traceback") == 1
