"""What autogpu promises first, on every version of TensorFlow. Judged by what was asked of the driver."""

from __future__ import annotations

import pytest

from tests.support.tensorflow_runner import GIB, GROWTH, LIMIT_OF_1_GIB, MIB, operation, script, session

IDLEST = 3
SAYS_GPU_3 = (
    "autogpu: GPU 3 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 4; memory allocated as needed; "
    "policy: defaults; for more GPUs: AUTOGPU_COUNT=2"
)


def test_importing_takes_nothing_and_says_nothing(with_autogpu):
    ran = with_autogpu(script("print('imported')"), fresh=True)
    assert (ran.stdout, ran.said) == ("imported\n", [])
    assert [call.call for call in ran.calls if call.call in ("cuInit", "context")] == []


def test_listing_takes_nothing_and_says_nothing(with_autogpu):
    ran = with_autogpu(script("print(len(tf.config.experimental.list_physical_devices('GPU')))"))
    assert (ran.stdout, ran.said, ran.contexts) == ("4\n", [], [])


def test_a_script_that_says_nothing_gets_the_idlest_gpu_with_growth(with_autogpu, version):
    ran = with_autogpu(script(operation(version)), fresh=True)
    assert (ran.contexts, list(ran.allocated)) == ([IDLEST], [IDLEST])
    assert ran.allocated[IDLEST] <= 64 * MIB
    assert ran.said == [SAYS_GPU_3]


def test_a_session_without_a_configuration_gets_the_idlest_gpu_with_growth(with_autogpu, version):
    ran = with_autogpu(script(session(version)))
    assert (ran.contexts, list(ran.allocated)) == ([IDLEST], [IDLEST])
    assert ran.allocated[IDLEST] <= 64 * MIB
    assert ran.said == [SAYS_GPU_3]


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        pytest.param(GROWTH, 1, 64 * MIB, id="growth-loop"),
        pytest.param(LIMIT_OF_1_GIB, GIB, GIB, id="limit"),
        pytest.param(GROWTH.replace("True", "False"), 0.9 * 24 * GIB, 24 * GIB, id="no-growth"),
    ],
)
def test_a_scripts_own_memory_settings_hold_on_the_idlest_gpu(with_autogpu, version, setting, least, most):
    ran = with_autogpu(script(setting, operation(version)))
    assert (ran.contexts, list(ran.allocated)) == ([IDLEST], [IDLEST])
    assert least <= ran.allocated[IDLEST] <= most


def test_a_scripts_own_choice_after_the_import_holds(with_autogpu, version):
    chosen = "os.environ.update(CUDA_DEVICE_ORDER='PCI_BUS_ID', CUDA_VISIBLE_DEVICES='2')"
    ran = with_autogpu(script(chosen, operation(version)))
    assert (ran.contexts, list(ran.allocated)) == ([2], [2])


def test_two_gpus_are_the_two_idlest(with_autogpu, version):
    ran = with_autogpu(script(operation(version)), AUTOGPU_COUNT="2")
    assert ran.contexts == [1, IDLEST]
    assert len(ran.said) == 1
    assert "the 2 idlest of 4" in ran.said[0]


def test_switched_off_it_is_plain_tensorflow(with_autogpu, version):
    ran = with_autogpu(script(operation(version)), fresh=True, AUTOGPU="0")
    assert (ran.contexts, ran.said) == ([0, 1, 2, 3], [])
    assert max(ran.allocated.values()) > 20 * GIB


def test_a_script_whose_memory_runs_out_is_told_why(with_autogpu, version):
    eager = "" if version.number >= (2, 0) else "tf.compat.v1.enable_eager_execution()"
    fill = "kept = [tf.raw_ops.Empty(shape=[1024, 1 << 18], dtype=tf.float32) for _ in range(3)]"
    ran = with_autogpu(script(eager, fill), exit_status=1, fresh=True, AUTOGPU_LIMIT="2GiB")
    _, first, second = ran.said
    assert "this process may take 2.0 GiB there, by memory.limit (AUTOGPU_LIMIT); it had " in first
    assert second.startswith("autogpu: to have more: AUTOGPU_LIMIT=")
    assert ran.stderr.count("Traceback") == 1
