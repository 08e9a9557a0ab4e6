"""The TensorFlow versions that autogpu is proved with, each on a Python of its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """One TensorFlow from PyPI, unmodified.

    Attributes:
        tensorflow: As pip takes it after ``tensorflow==``.
        python: The Python that it is tested on.
        package: Which of TensorFlow's wheels has the CUDA code.
        requirements: What pip has to be told beside the wheel's own requirements, which have no upper bounds in old
            wheels: later releases of these break it.
        launches_kernels: Whether its kernels launch on a simulated GPU. Where not, it gets as far as its memory.
    """

    tensorflow: str
    python: str
    requirements: tuple[str, ...] = ()
    package: str = "tensorflow"
    launches_kernels: bool = True

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor, to compare."""
        major, minor = self.tensorflow.split(".")[:2]
        return int(major), int(minor)

    @property
    def name(self) -> str:
        """As a test's id shows it."""
        return f"tf-{self.tensorflow.replace('.*', '')}"


VERSIONS = (
    # Its own runtime is linked in, and asks the driver for tables that are documented nowhere.
    Version(
        "1.15.5",
        "3.7",
        ("protobuf<3.21", "numpy<1.19", "h5py<3"),
        package="tensorflow-gpu",
        launches_kernels=False,
    ),
    Version("2.4.4", "3.8", ("protobuf<3.21",)),
    Version("2.15.1", "3.11"),
    Version("2.18.1", "3.11"),
    # A release candidate; the last row is the version that `make test` runs.
    Version("2.22.0rc0", "3.14"),
    Version("2.21.*", "3.11"),
)


def requirements(tensorflow: str) -> tuple[str, ...]:
    """What pip installs for a version, the wheel first; one that isn't in the table comes alone."""
    for version in VERSIONS:
        if version.tensorflow == tensorflow:
            return (f"{version.package}=={tensorflow}", *version.requirements)
    return (f"tensorflow=={tensorflow}",)
