"""The TensorFlow versions that autogpu is tested with, each on a Python of its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """An unmodified TensorFlow from PyPI.

    Attributes:
        tensorflow: The version as in a requirement, after ``tensorflow==``.
        python: Version of Python to test it on.
        package: Name of the TensorFlow wheel with the CUDA code.
        requirements: Upper bounds that the requirements of old wheels lack. Later releases of these packages break
            this TensorFlow.
        launches_kernels: True if its kernels can run on a simulated GPU. Otherwise scripts can only allocate memory.
    """

    tensorflow: str
    python: str
    requirements: tuple[str, ...] = ()
    package: str = "tensorflow"
    launches_kernels: bool = True

    @property
    def number(self) -> tuple[int, int]:
        major, minor = self.tensorflow.split(".")[:2]
        return int(major), int(minor)

    @property
    def name(self) -> str:
        return f"tf-{self.tensorflow.replace('.*', '')}"


VERSIONS = (
    # This wheel contains its own CUDA runtime, which requests undocumented tables from the driver.
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
    # A release candidate. It is not the last row, because `make test` runs the version of the last row.
    Version("2.22.0rc0", "3.14"),
    Version("2.21.*", "3.11"),
)


def requirements(tensorflow: str) -> tuple[str, ...]:
    """Return pip's requirements for a version, the wheel first. Only versions in the table have more requirements."""
    for version in VERSIONS:
        if version.tensorflow == tensorflow:
            return (f"{version.package}=={tensorflow}", *version.requirements)
    return (f"tensorflow=={tensorflow}",)
