"""Without a usable pynvml, a job prints one line and can't choose a GPU. The rest of the policy is applied."""

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.tensorflow_runner import GIB, LAB, Runner, script

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900), pytest.mark.xdist_group("tensorflow-without-pynvml")]

WORK = """
for gpu in tf.config.experimental.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
with tf.device("/GPU:0"):
    x = tf.random.uniform((256, 256)) + 1.0
print("done")
"""


@pytest.fixture(scope="module")
def python():
    base = environments.tensorflow()
    made = environments.environment(base.resolve(), on_top_of=base, with_hook=True, name="without-pynvml")
    environments.remove(made, "nvidia-ml-py")
    return made


@pytest.fixture
def pynvml(python, request):
    file = environments.site_packages(python) / "pynvml.py"
    if request.param is not None:
        file.write_text(request.param)
    yield
    file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("pynvml", "why"),
    [
        pytest.param(None, "pynvml (nvidia-ml-py) is not installed", id="pynvml-missing"),
        pytest.param("version = 1\n", "is not NVIDIA's pynvml: it has no NVMLError", id="pynvml-of-another-project"),
        pytest.param("raise SystemExit(3)\n", "pynvml can't be imported: SystemExit: 3", id="pynvml-that-exits"),
    ],
    indirect=["pynvml"],
)
@pytest.mark.usefixtures("pynvml")
def test_job_without_usable_pynvml_runs_and_prints_one_line(python, tmp_path, forks, why):
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server", context="256MiB") as server:
        ran = Runner(python, server, tmp_path / "project", forks)(script(WORK))
    assert ran.stdout == "done\n"
    (line,) = ran.said
    assert line.startswith("autogpu: 4 GPUs used, not chosen by autogpu: ")
    assert line.endswith(f"{why}; memory allocated as needed")
    assert sum(ran.allocated.values()) < GIB
