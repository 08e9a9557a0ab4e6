"""The memory limit for JAX. It holds for all settings of XLA, unless the script sets its own limit."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from autogpu.frameworks.jax import memory
from autogpu.frameworks.jax.memory import Settings, limit, most, read
from tests.gpusim import Gpu
from tests.support.framework_jobs import FILL, HOLD, READY_ON_THE_ONLY
from tests.support.framework_machines import GIB, MIB

FLAG = "--xla_gpu_memory_fraction_policy"


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        ("0.75", 0.75),
        ("0.75+", 1.0),
        ("0.5-0.9", 0.9),
        (" 0.5-0.5 ", 0.5),
        (0.25, 0.25),
        ("1e-05", 1e-05),
        ("1.5", 1.0),
        ("", 0.0),
        ("half", 0.0),
        ("half+", 0.0),
        ("0.75+0.8", 0.0),
        (None, 0.0),
    ],
)
def test_policy_gives_the_largest_share_of_the_pool(policy, part):
    assert most(policy) == part


@pytest.mark.parametrize(
    ("options", "environ", "own_options", "expected"),
    [
        pytest.param({}, {}, None, Settings(0.0, False, 0.75), id="no-setting"),
        pytest.param({"memory_fraction_policy": "0.8+"}, {}, None, Settings(0.0, False, 0.8), id="default-of-jax"),
        pytest.param({"memory_fraction_policy": "0.6"}, {}, "", Settings(0.0, False, 0.6), id="another-default"),
        pytest.param({"memory_fraction_policy": "x"}, {}, "", Settings(0.0, False, 0.75), id="invalid-default"),
        pytest.param({"memory_fraction": 0.5}, {}, None, Settings(0.5, False, 0.75), id="fraction-option"),
        pytest.param({}, {"XLA_CLIENT_MEM_FRACTION": ".5"}, None, Settings(0.5, False, 0.75), id="fraction-variable"),
        pytest.param(
            {}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, None, Settings(0.5, False, 0.75), id="older-fraction-variable"
        ),
        pytest.param(
            {"memory_fraction_policy": "0.5-0.9"},
            {"XLA_CLIENT_MEM_FRACTION": "0.5-0.9"},
            None,
            Settings(0.9, False, 0.75),
            id="policy-in-the-variable",
        ),
        pytest.param(
            {"memory_fraction_policy": "0.75+"},
            {},
            {"memory_fraction_policy": "0.5"},
            Settings(0.5, False, 0.75),
            id="policy-in-a-mapping",
        ),
        pytest.param({}, {}, "memory_fraction:0.2;x", Settings(0.2, False, 0.75), id="fraction-in-create-options"),
        pytest.param(
            {},
            {},
            "memory_fraction_policy:0.4+;memory_fraction:0.2",
            Settings(1.0, False, 0.75),
            id="policy-of-the-script-overrides-its-fraction",
        ),
        pytest.param(
            {"memory_fraction": 0.2},
            {"XLA_FLAGS": f"--xla_dump_to=/x {FLAG}=0.3 {FLAG}=0.5-0.6", "XLA_CLIENT_MEM_FRACTION": "0.2"},
            None,
            Settings(0.6, True, 0.75),
            id="last-flag-overrides-all",
        ),
        pytest.param(
            {}, {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}, None, Settings(0.0, False, 0.75), id="unrelated-flag"
        ),
    ],
)
def test_limit_is_read_from_the_flag_the_options_or_the_variable(options, environ, own_options, expected):
    assert read(options, environ, own_options) == expected


def test_preallocated_pool_may_grow_by_default():
    assert read({"memory_fraction_policy": "0.75+"}, {}, None, grows=False).default_share == 1.0


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Return a function that installs fake, empty modules of JAX and its plug-in.

    Its arguments are the version of JAX and the content of the plug-in file, or None for no file.
    """

    def made(version, content):
        jax: Any = ModuleType("jax")
        jax.__version_info__ = version
        module = ModuleType("jax_plugins.xla_cuda12")
        module.__file__ = str(tmp_path / "__init__.py")
        monkeypatch.setitem(sys.modules, "jax", jax)
        for name in [name for name in sys.modules if name.startswith("jax_plugins.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if content is not None:
            (tmp_path / "xla_cuda_plugin.so").write_bytes(content)

    return made


KNOWS = b"\0memory_fraction\0memory_fraction_policy\0"


@pytest.mark.parametrize(
    ("version", "content", "is_written"),
    [
        pytest.param((0, 12, 0), KNOWS, True, id="plugin-has-the-option"),
        pytest.param((0, 12, 0), b"\0memory_fraction\0", False, id="plugin-lacks-the-option"),
        pytest.param((0, 12, 0), b"", False, id="empty-plugin-file"),
        pytest.param((0, 12, 0), None, False, id="no-plugin-file"),
        pytest.param((0, 11, 2), KNOWS, False, id="older-jax"),
    ],
)
def test_policy_is_written_only_if_the_plugin_has_the_option(plugin, version, content, is_written):
    plugin(version, content)
    options = {}
    limit(options, 0.25)
    policy = {"memory_fraction_policy": "0.250000-0.250000"} if is_written else {}
    assert options == {"memory_fraction": 0.25, **policy}


def test_policy_sent_by_jax_is_replaced_whatever_the_plugin_has(plugin):
    plugin((0, 11, 2), None)
    options = {"memory_fraction_policy": "0.75+"}
    limit(options, 0.25)
    assert options["memory_fraction_policy"] == "0.250000-0.250000"


def test_setting_that_makes_jax_ignore_a_limit_is_found():
    found = [
        memory.setting_without_limit({"allocator": "default"}, {}),
        memory.setting_without_limit({"allocator": "address"}, {}),
        memory.setting_without_limit({}, {"XLA_PYTHON_CLIENT_ALLOCATOR": "Platform"}),
        memory.setting_without_limit({}, {"TF_FORCE_UNIFIED_MEMORY": "true"}),
    ]
    allocator = "XLA_PYTHON_CLIENT_ALLOCATOR"
    assert found == ["", f"{allocator}=address", f"{allocator}=platform", "TF_FORCE_UNIFIED_MEMORY=true"]


# JAX's documentation announces that the version after 0.12 sets a policy that lets the pool use all memory.
SENDS_A_POLICY = """
import jaxlib.xla_client as client
made = client.generate_pjrt_gpu_plugin_options
client.generate_pjrt_gpu_plugin_options = lambda: {**made(), "memory_fraction_policy": "0.75+"}
"""
ON_REAL_JAX = (pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("jax-policies"))


def of_real_jax(test):
    for mark in ON_REAL_JAX:
        test = mark(test)
    return test


@of_real_jax
def test_limit_holds_if_jax_sends_a_policy_that_lets_the_pool_grow(machine_of):
    ran = machine_of("jax", Gpu()).run(SENDS_A_POLICY + FILL["jax"], fresh=True, AUTOGPU_LIMIT="2GiB")
    assert "memory limited to 2048 MiB, allocated as needed" in ran.said[0], ran.stderr
    assert 1.5 * GIB <= ran.peak_bytes(0) <= 2 * GIB + 16 * MIB


@of_real_jax
def test_out_of_memory_line_names_the_share_in_the_policy_of_jax(machine_of):
    takes = "import jax\njax.numpy.zeros(3 << 30, dtype='uint8').block_until_ready()\n"
    ran = machine_of("jax", Gpu(memory="4GiB")).run(SENDS_A_POLICY.replace("0.75+", "0.5+") + takes, fresh=True)
    lines = [line for line in ran.said if "out of memory" in line]
    assert "limited to 1.8 GiB, the part that JAX takes by default" in lines[0], ran.stderr


@of_real_jax
def test_policy_of_the_script_overrides_the_limit_and_sets_the_claim(machine_of):
    machine = machine_of("jax", Gpu())
    options = {"AUTOGPU_LIMIT": "2GiB", "JAX_PJRT_CLIENT_CREATE_OPTIONS": "memory_fraction_policy:0.5"}
    job = machine.start(HOLD["jax"], fresh=True, **options)
    assert job.line() == READY_ON_THE_ONLY
    [claimed] = machine.claimed_bytes()[job.pid].values()
    assert claimed == pytest.approx(12 * GIB, abs=0.6 * GIB)
    assert "memory limited by the script to 50% of each GPU, allocated as needed" in job.end().said[0]
    ran = machine.run(FILL["jax"], fresh=True, **options)
    assert 11 * GIB <= ran.peak_bytes(0) <= 12 * GIB + 16 * MIB
