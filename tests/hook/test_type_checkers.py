"""autogpu's hook together with beartype and typeguard, which add type checks to imported modules."""

import subprocess

import pytest

from tests.hook.cases import NOT_APPLIED
from tests.support import environments

# Import ctypes first: beartype does not return if ctypes is imported after its hook is installed.
BEARTYPE = "import ctypes\nfrom beartype.claw import beartype_all\n{}beartype_all()\n{}"
TENSORFLOW = "import tensorflow.python\n"
# typeguard leaves modules without source, such as TensorFlow's libraries, to the finders after it.
COMPILED = "import py_compile\npy_compile.compile('tensorflow/python.py', cfile='tensorflow/compiled.pyc')\n"
TYPEGUARD = "import typeguard\ntypeguard.install_import_hook(['tensorflow'])\nimport tensorflow.compiled\n"
IS_APPLIED = "from autogpu import activation\nprint(list(activation.imported))\nimport autogpu.lease.queue\n"

LEFT_AS_IT_IS = NOT_APPLIED.format("another import hook (typeguard._importhook) loaded it first")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(BEARTYPE.format("", TENSORFLOW) + IS_APPLIED, ("['tensorflow']\n", ""), id="beartype-before"),
        pytest.param(BEARTYPE.format(TENSORFLOW, "") + IS_APPLIED, ("['tensorflow']\n", ""), id="beartype-after"),
        pytest.param(COMPILED + TYPEGUARD, ("", LEFT_AS_IT_IS), id="typeguard"),
    ],
)
def test_autogpu_is_applied_beside_a_type_checker_or_prints_one_line(tmp_path, script, said):
    base = environments.interpreter("3.11") or pytest.skip("no Python 3.11 on this machine")
    python = environments.environment(base, ["beartype", "typeguard"], with_hook=True)
    (tmp_path / "tensorflow").mkdir()
    for name in ("__init__.py", "python.py"):
        (tmp_path / "tensorflow" / name).touch()
    done = subprocess.run(
        [str(python), "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    said_by_us = "".join(line for line in done.stderr.splitlines(True) if "no GPU" not in line)
    assert (done.returncode, done.stdout, said_by_us) == (0, *said)
