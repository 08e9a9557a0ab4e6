"""Real TensorFlow in an environment without autogpu, with the host's autogpu or under `autogpu run`."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.host_setup.test_hook_folder import OWN, build
from tests.support import environments
from tests.support.persons import NO_PERSON, as_person

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

BUSY = Gpu(processes={5004242: "9GiB"}, utilization=97)
SCRIPT = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU'))); tf.constant(1) + 1"


@pytest.fixture
def place():
    made = Path(tempfile.mkdtemp(prefix="autogpu-host-"))
    made.chmod(0o755)
    for name in ("server", "leases"):
        (made / name).mkdir()
        (made / name).chmod(0o1777)
    (made / "train.py").write_text(SCRIPT)
    yield made
    shutil.rmtree(str(made), ignore_errors=True)


@pytest.mark.skipif(bool(NO_PERSON), reason=NO_PERSON)
def test_script_gets_the_idle_gpu_from_the_hosts_autogpu(place):
    build(place / "autogpu", [OWN])
    with Server([BUSY, Gpu()], folder=place / "server") as server:
        for path in (place / "server").rglob("*"):
            path.chmod(0o777 if path.is_dir() else path.stat().st_mode | 0o666)
        environ = {"PYTHONPATH": str(place / "autogpu"), "AUTOGPU_LEASE_DIR": str(place / "leases"), "HOME": "/"}
        done = server.run(
            as_person([str(environments.tensorflow()), str(place / "train.py")]), environ=environ, timeout=600
        )
    assert done.returncode == 0, done.stderr
    assert "autogpu: GPU 1 (" in done.stderr and "the idlest of 2" in done.stderr, done.stderr


def test_script_gets_the_idle_gpu_under_autogpu_run_of_another_environment(place):
    with Server([BUSY, Gpu()], folder=place / "server") as server:
        command = [
            sys.executable,
            "-m",
            "autogpu",
            "run",
            "--",
            str(environments.tensorflow()),
            str(place / "train.py"),
        ]
        done = server.run(command, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "autogpu: GPU 1 (" in done.stderr and "the idlest of 2" in done.stderr, done.stderr
