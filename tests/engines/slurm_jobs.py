"""Jobs on a Slurm cluster of simulated servers, and their results."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from tests.engines.engine_jobs import WHOLE, Run, lines_of_autogpu
from tests.engines.slurm import Slurm


@dataclass(frozen=True)
class Done:
    """The results of jobs that one command started.

    Attributes:
        taken: The memory of each job, in the order of ranks, keyed by GPU: ``whole``, or text such as ``11.50 GiB``.
        said: autogpu's lines.
    """

    taken: list[dict[int, str]]
    said: list[str]
    stdout: str
    stderr: str


class Cluster:
    """Slurm, and the simulated servers of its nodes.

    Args:
        python: The Python that runs the jobs.
    """

    def __init__(self, slurm: Slurm, python: Path) -> None:
        self.slurm, self.servers, self.python = slurm, slurm.servers, python
        self._runs = 0

    def new_run(self, count: int = 1) -> Run:
        self._runs += 1
        return Run(self.slurm.folder / f"run{self._runs}", count)

    def run(
        self,
        *arguments: str,
        jobs: int = 1,
        gib: float = WHOLE,
        before: Sequence[str] = (),
        program: str = "srun",
        batch: str = "",
        scripts: int = 1,
        kept: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        python: Path | None = None,
        framework: str = "toyflow",
        dies: str = "",
    ) -> Done:
        """Run jobs at the same time, and to their end. Each allocates ``gib`` on its GPUs.

        Args:
            arguments: Arguments of ``program``, which starts the jobs.
            before: Words in front of the job's own command.
            batch: A shell script for ``sbatch``, which replaces ``program``. ``{job}`` is the job's command.
            scripts: The number of ``sbatch`` jobs that run the script.
            dies: The rank that runs out of memory.
            kept: Arguments of another job that holds GPUs but does not use them. Slurm grants it the lowest numbers.
        """
        run = self.new_run(jobs)
        job = [*before, *run.command(python or self.python, gib, framework, dies)]
        environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **(environ or {})}
        with self.kept_from_others(*kept) if kept else ExitStack():
            if batch:
                script = batch.format(job=" ".join(job))
                done = self.slurm.batch(script, *arguments, environ=environ, scripts=scripts)
            else:
                done = self.slurm.run(*arguments, command=job, environ=environ, program=program)
        # A message is needed, because pytest explains bare assertions only in test files.
        assert (done.returncode != 0) == bool(dies), f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        taken = [each.gpus for each in run.taken(*self.servers)]
        return Done(taken, lines_of_autogpu(done.stderr), done.stdout, done.stderr)

    @contextmanager
    def kept_from_others(self, *arguments: str) -> Iterator[None]:
        """Let another job hold these resources within the ``with`` statement."""
        job = self.slurm.popen(*arguments, command=["/bin/sh", "-c", "echo; exec cat"])
        job.stdout.readline()
        try:
            yield
        finally:
            job.communicate(timeout=60)
