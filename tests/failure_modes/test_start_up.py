"""Failure modes of start-up files, of unusual Pythons and TensorFlow versions, and of output."""

import shutil

import pytest

from tests.gpusim import Gpu
from tests.support import environments

pytestmark = pytest.mark.timeout(600)

USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\nprint('done')\n"
COUNT = "import sys; print([getattr(f, '__name__', '') for f in sys.meta_path].count('_autogpu_hook'))"


@pytest.mark.tensorflow
def test_33_tensorflow_1_session_gets_the_idlest_gpu(train):
    script = """
import tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    print(session.run(tf.constant(2)))
"""
    ran = train(Gpu(processes={5004242: "9GiB"}), Gpu())(script)
    assert (ran.stdout, ran.contexts, len(ran.said)) == ("2\n", [1], 1)


def test_33_unknown_tensorflow_gets_its_gpu_from_the_environment(lab, stand_in):
    # A nightly build can lack the functions that autogpu wraps, as this stand-in does.
    autogpu = lab(Gpu(processes={5004242: "9GiB"}), Gpu())
    script = stand_in("import os, tensorflow; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    done = autogpu.server.run([str(autogpu.python), script])
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.count("\n") == 1
    assert "TensorFlow 9.0 lacks functions that autogpu hooks into" in done.stderr


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_33_job_without_flock_gets_a_gpu_but_no_claim(train, tmp_path):
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "fcntl.py").write_text("raise ImportError('no fcntl here')\n")
    run = train(Gpu(processes={5004242: "9GiB"}), Gpu())
    ran = run(USE, fresh=True, PYTHONPATH=str(tmp_path / "windows"))
    assert (ran.stdout, ran.contexts) == ("done\n", [1]), ran.stderr
    assert sum("no flock" in line for line in ran.said) == 1, ran.said


def test_34_start_up_files_that_run_twice_install_one_hook(lab, stand_in):
    autogpu = lab(Gpu(), Gpu())
    packages = environments.site_packages(autogpu.python)
    script = stand_in(f"""
        import site
        site.addsitedir({str(packages)!r})
        site.main()
        {COUNT}
        import tensorflow
    """)
    done = autogpu.server.run([str(autogpu.python), script])
    assert (done.stdout, done.stderr.count("\n")) == ("1\n", 1), done.stderr


def test_34_python_started_by_autogpu_run_has_one_hook(lab):
    autogpu = lab(Gpu())
    done = autogpu("run", "--", str(autogpu.python), "-c", COUNT)
    assert (done.stdout, done.stderr) == ("1\n", "")


# tests/policy covers mistakes in the other layers of the policy.
@pytest.mark.tensorflow
def test_35_policy_with_invalid_toml_causes_one_line(train, tmp_path):
    run = train(Gpu(processes={5004242: "9GiB"}), Gpu())
    (tmp_path / "project" / "autogpu.toml").write_text("[select]\ncount = 2\n[memory\nlimit = \n")
    ran = run(USE)
    assert (ran.stdout, ran.contexts, len(ran.said)) == ("done\n", [1], 2), ran.stderr
    assert "autogpu.toml:3 is not valid TOML" in ran.said[0]


# tests/hook covers the other ways in which the package can be broken.
def test_36_broken_autogpu_prints_one_line_at_the_tensorflow_import(own_environment, stand_in):
    script = stand_in("import tensorflow; print(tensorflow.__version__)")
    package = own_environment.packages / "autogpu"
    (package / "allocation.py").write_text("import gone_dependency")
    for lines in (1, 0):
        start, imports = own_environment.run("-c", "print(1)"), own_environment.run(script)
        assert (start.returncode, start.stdout, start.stderr) == (0, "1\n", "")
        assert (imports.returncode, imports.stdout) == (0, "9.0\n")
        assert [line.startswith("autogpu: ") for line in imports.stderr.splitlines()] == [True] * lines, imports.stderr
        shutil.rmtree(package, ignore_errors=True)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "environ", [{"AUTOGPU_LEVEL": "explain"}, {"AUTOGPU_CUONT": "2"}], ids=["level-explain", "misspelt-variable"]
)
def test_40_autogpu_prints_nothing_on_stdout(train, environ):
    ran = train(Gpu(), Gpu())(USE, **environ)
    assert ran.stdout == "done\n"
    assert len(ran.said) > 1


@pytest.mark.thorough
def test_41_hook_that_pip_left_behind_is_silent_and_removable(own_environment):
    pip = ("-m", "pip", "--disable-pip-version-check", "uninstall", "--yes", "--quiet")
    removed = own_environment.run(*pip, "autogpu")
    assert removed.returncode == 0, removed.stderr
    assert not (own_environment.packages / "autogpu").exists()
    start = own_environment.run("-c", "print(1)")
    assert (start.returncode, start.stdout, start.stderr) == (0, "1\n", "")
    assert own_environment.run(*pip, "autogpu-autoload").returncode == 0
    assert not list(own_environment.packages.glob("*autogpu*"))
