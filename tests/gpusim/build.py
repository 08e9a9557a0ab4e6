"""Build of the simulation on first use, with the C compiler of the machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.gpusim import imports
from tests.gpusim.imports import Imports
from tests.support.environments import CACHE

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libgpusim.so"
STUBS = "libgpusim_missing.so"
DEVICE_NODES = "libgpusim_device_nodes.so"
# The libraries that programs open: NVIDIA's driver and NVML, then the CUDA 13, 12, 11 and 10 libraries for JAX and the
# TensorFlow wheels from 1.15 to 2.21. All names are links to one file, so the loader loads it once. The names for
# PyTorch are read from PyTorch's own libraries (imports.py).
NAMES = (
    *("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"),
    *("libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcusolver.so.12"),
    *("libnvrtc.so.13", "libnvJitLink.so.13", "libcupti.so.13"),
    *("libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11"),
    *("libcusparse.so.12", "libcurand.so.10", "libnvrtc.so.12", "libnvJitLink.so.12", "libcupti.so.12"),
    *("libcublas.so.11", "libcublasLt.so.11", "libcufft.so.10", "libcusolver.so.10"),
    *("libcusparse.so.11", "libcupti.so.11.0", "libcupti.so.11.2", "libcupti.so.11.8"),
    *("libcublas.so.10", "libcusparse.so.10", "libcupti.so.10.1"),
    *("libcublas.so.10.0", "libcufft.so.10.0", "libcusolver.so.10.0"),
    *("libcusparse.so.10.0", "libcurand.so.10.0", "libcupti.so.10.0"),
)
# TensorFlow compares the version of these libraries with the version that it was built for. Programs that need
# different versions run on one server at the same time. So each name has its own file, which only adds the version.
CUDART = ("cudart.c", "properties.c")
RELEASES = {
    "libcudart.so.13": (CUDART, "CUDART_VERSION=13020"),
    "libcudart.so.12": (CUDART, "CUDART_VERSION=12040"),
    "libcudart.so.11.0": (CUDART, "CUDART_VERSION=11080"),
    "libcudart.so.10.1": (CUDART, "CUDART_VERSION=10010"),
    "libcudart.so.10.0": (CUDART, "CUDART_VERSION=10000"),
    # PyTorch and JAX refuse a cuDNN that is older than the one they were built for.
    "libcudnn.so.9": (("cudnn.c",), "CUDNN_VERSION=93000"),
    "libcudnn.so.8": (("cudnn.c",), "CUDNN_VERSION=8906"),
    "libcudnn.so.7": (("cudnn.c",), "CUDNN_VERSION=7605"),
}
FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fPIC", "-shared"),
    # TensorFlow exports cu*, cuda* and nvml* functions too. Our functions must call each other and not those.
    *("-fvisibility=hidden", "-Wl,-Bsymbolic"),
    # A program may close the library while one of our threads still waits in it.
    "-Wl,-z,nodelete",
)


class BuildError(RuntimeError):
    """The simulation can't be compiled. The message gives the remedy or the compiler's output."""


def build() -> Path:
    """Return the folder of the libraries, for ``LD_LIBRARY_PATH``. Compile them if sources or flags have changed.

    Raises:
        BuildError: There is no C compiler, or it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    wanted = imports.recorded()
    folder = CACHE / "gpusim" / _digest(compiler, wanted)
    if folder.is_dir():
        return folder
    try:
        return _built(compiler, wanted, folder)
    except PermissionError:
        # The checkout belongs to another user, so build in the temporary folder.
        return _built(compiler, wanted, Path(tempfile.gettempdir(), f"gpusim-{os.getuid()}", folder.name))


def _built(compiler: list[str], wanted: Imports, folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _compile(compiler, wanted, folder)
    return folder


def _digest(compiler: list[str], wanted: Imports) -> str:
    parts = (compiler, FLAGS, NAMES, RELEASES, wanted.text(), platform.machine())
    digest = hashlib.sha256(repr(parts).encode())
    for source in sorted(SOURCES.rglob("*.[ch]")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: list[str], wanted: Imports, folder: Path) -> None:
    if shutil.which(compiler[0]) is None:
        raise BuildError(f"gpusim: no C compiler: {compiler[0]} not found; install gcc or name one in CC")
    # Build in a temporary folder and rename it, so that a folder with the final name is always complete.
    making = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
        _call([*compiler, *FLAGS, "-o", str(making / LIBRARY), *sources, "-lpthread", "-ldl"])
        for name in RELEASES:
            _link(compiler, making / name, _release(name), [LIBRARY])
        _call(
            [*compiler, *FLAGS, "-o", str(making / DEVICE_NODES), str(SOURCES / "preload" / "device_nodes.c"), "-ldl"]
        )
        if wanted.versions:
            _add_what_wheels_import(compiler, wanted, making)
    except BuildError:
        shutil.rmtree(making)
        raise
    for name in NAMES:
        if not (making / name).exists():
            (making / name).symlink_to(LIBRARY)
    making.chmod(0o755)
    making.rename(folder)


def _add_what_wheels_import(compiler: list[str], wanted: Imports, making: Path) -> None:
    """Make the libraries that wheels are linked against, with the symbol versions that the wheels require."""
    present = imports.defined(making / LIBRARY)
    releases = [imports.defined(making / name) for name in RELEASES]
    code = making / "missing.c"
    # A function in any release of a library counts as present: wheels are linked against the newest release.
    code.write_text(imports.stubs(wanted, present.union(*releases)))
    _link(compiler, making / STUBS, [f"-I{SOURCES}", str(code)], [LIBRARY])
    for library in sorted({name for name, _ in wanted.versions}):
        versions = [each for name, each in wanted.versions if name == library and each]
        if versions:
            script = making / f"{library}.versions"
            script.write_text(imports.version_script(versions))
            own = _release(library) if library in RELEASES else []
            _link(compiler, making / library, [*own, f"-Wl,--version-script={script}"], [LIBRARY, STUBS])
        elif library not in NAMES:
            (making / library).symlink_to(STUBS)


def _release(library: str) -> list[str]:
    sources, version = RELEASES[library]
    return [f"-D{version}", *(str(SOURCES / "release" / source) for source in sources)]


def _link(compiler: list[str], library: Path, own: list[str], others: list[str]) -> None:
    the_rest = ["-Wl,--no-as-needed", f"-L{library.parent}", *(f"-l:{name}" for name in others), "-Wl,-rpath,$ORIGIN"]
    _call([*compiler, *FLAGS, *own, "-o", str(library), *the_rest])


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise BuildError(f"gpusim: {shlex.join(command)} failed:\n{done.stderr}")
