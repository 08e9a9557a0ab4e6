"""Virtual environments like a user's: a real interpreter and the built wheel, kept in ``.cache`` between runs.

The folder's name is a digest of all parts of the environment. A change of the source therefore makes a new environment,
and an unchanged tree reuses the old one. uv makes the environments, because it unpacks a wheel once per machine and
links the files of each environment to it. Tests of the installation itself use pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence

from tests.support import versions

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("AUTOGPU_TEST_CACHE", str(ROOT / ".cache")))
PYENV_VERSIONS = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
OWN_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SUPPORTED = ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15")

# The environment variables before the first test. Each test has its own home, in which uv would not find its cache.
# The variables of an environment that is active in this shell are left out: uv works on other environments here.
_NOT_OURS = ("AUTOGPU", "CUDA_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}


def interpreter(version: str = OWN_VERSION) -> Path | None:
    """Return the running Python if it has this version (such as ``"3.9"``), or one of pyenv, ``PATH`` or ``.cache``."""
    if version == OWN_VERSION:
        return Path(getattr(sys, "_base_executable", None) or sys.executable)
    for folder in sorted(PYENV_VERSIONS.glob(f"{version}.*"), reverse=True):
        if (folder / "bin" / "python").exists():
            return folder / "bin" / "python"
    found = shutil.which(f"python{version}") or shutil.which(str(CACHE / f"python-{version}" / "bin" / "python"))
    return Path(found) if found else None


def wheel(name: str = "autogpu") -> Path:
    """Return the wheel of autogpu or autogpu_autoload; build it if one of its source files has changed."""
    folder = CACHE / "wheel" / _source_digest()
    with _only_one(folder):
        built = sorted(folder.glob(f"{name}-*.whl"))
        if not built:
            source = ROOT if name == "autogpu" else ROOT / "sitecustomize_template"
            _uv("build", "--wheel", "--out-dir", str(folder), str(source))
            built = sorted(folder.glob(f"{name}-*.whl"))
    return built[0]


def source_archive(folder: Path) -> Path:
    """Build this tree's source archive (sdist) into ``folder``."""
    _uv("build", "--sdist", "--out-dir", str(folder), str(ROOT))
    return next(folder.glob("autogpu-*.tar.gz"))


def environment(
    python: Path,
    requirements: Sequence[str] = (),
    *,
    without_dependencies: Sequence[str] = (),
    with_autogpu: bool = True,
    on_top_of: Path | Sequence[Path] | None = None,
    with_hook: bool = False,
    name: str = "",
) -> Path:
    """Return the interpreter of a virtual environment. Tests share it, so a test that writes into it needs a ``name``.

    Args:
        python: The interpreter to make the environment from.
        requirements: Packages to install besides autogpu's wheel.
        without_dependencies: Packages to install after these, without their dependencies.
        with_autogpu: True to install autogpu's wheel.
        on_top_of: The interpreter of another environment whose packages are visible in this one, for packages too
            big to install twice. With several interpreters, the first takes precedence.
        with_hook: True to run ``autogpu install`` in the environment.
        name: Makes a second environment from the same parts, for a test that writes into its environment.
    """
    bases = [on_top_of] if isinstance(on_top_of, Path) else list(on_top_of or ())
    further = [wheel().parent.name if with_autogpu else "", name, os.pathsep.join(map(str, bases))]
    further += ["hook" if with_hook else "", *(f"{each} alone" for each in without_dependencies)]
    folder = _place(python, requirements, further)
    executable = folder / "bin" / "python"
    with _only_one(folder):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--python", str(python), str(folder))
            # Remove uv's start-up file, which Python's own venv doesn't make.
            for file in site_packages(executable).glob("_virtualenv.*"):
                file.unlink()
            # If a test writes here, copy the files: a change of a linked file would change every environment.
            install = ("pip", "install", "--python", str(executable), *(["--link-mode=copy"] if name else []))
            wanted = [*requirements, *([str(wheel())] if with_autogpu else [])]
            if wanted:
                _uv(*install, *wanted)
            if without_dependencies:
                _uv(*install, "--no-deps", *without_dependencies)
            if bases:
                lines = "".join(f"{site_packages(base)}\n" for base in bases)
                (site_packages(executable) / "on_top_of.pth").write_text(lines)
            if with_hook:
                _run([str(executable), "-m", "autogpu", "install"])
            (folder / "complete").touch()
    return executable


def remove(executable: Path, package: str) -> None:
    """Uninstall a package, if present, from an environment that a test writes into."""
    _uv("pip", "uninstall", "--python", str(executable), package)


def _place(python: Path, requirements: Sequence[str], further: Sequence[str] = ("",) * 4) -> Path:
    digest = hashlib.sha256("\n".join([str(python), *requirements, *further]).encode()).hexdigest()[:16]
    return CACHE / "environments" / digest


def tensorflow(version: str = "2.21.*", python: str = "3.11") -> Path:
    """Return the Python of an environment with the unmodified TensorFlow wheel and without autogpu; made once, 2 GB.

    Args:
        version: A version as in a requirement. If ``tests/support/versions.py`` lists it, the requirements given there
            are installed with it.
        python: Version of Python, such as ``"3.8"``.
    """
    found = interpreter(python)
    if found is None:
        raise RuntimeError(f"no Python {python} on this machine")
    return environment(found, versions.requirements(version), with_autogpu=False)


def tensorflow_if_there() -> Path | None:
    """Return the interpreter of :func:`tensorflow` if that environment exists; install nothing."""
    found = interpreter("3.11")
    folder = found and _place(found, versions.requirements("2.21.*"))
    return folder / "bin" / "python" if folder and (folder / "complete").exists() else None


def tensorflow_with_autogpu(version: str = "2.21.*", python: str = "3.11") -> Path:
    base = tensorflow(version, python)
    return environment(base.resolve(), on_top_of=base, with_hook=True)


def site_packages(executable: Path) -> Path:
    folders = list(executable.parent.parent.glob("lib/python*/site-packages"))
    return folders[0]


def files_of_the_project() -> list[str]:
    """Return the files that git tracks or would add; without git, all files except those in ``.gitignore``."""
    listed = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        names = [name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git", "PKG-INFO"}
        tops = [top for top in ROOT.iterdir() if top.name not in ignored]
        inside = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*"))]
        names = [str(file.relative_to(ROOT)) for file in inside if "__pycache__" not in file.parts]
    return sorted(name for name in names if (ROOT / name).is_file())


def _source_digest() -> str:
    digest = hashlib.sha256()
    for part in ("autogpu", "sitecustomize_template", "hatch_build.py", "pyproject.toml", "README.md"):
        top = ROOT / part
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _uv(*arguments: str) -> None:
    # Imported here, because tests of real hardware run on machines where uv can't be installed.
    import uv

    _run([uv.find_uv_bin(), *arguments, "--quiet"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=ENVIRON, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
