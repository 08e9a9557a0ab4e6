"""The jobs that run on a cluster of simulated servers, and what became of them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from tests.engines.engine_jobs import WHOLE, Run, lines_of_autogpu
from tests.engines.slurm import Slurm


@dataclass(frozen=True)
class Done:
    """What became of jobs that were started by one command.

    Attributes:
        taken: By each, in the order of their ranks: by GPU, ``whole`` or how many GiB.
        said: What autogpu printed.
    """

    taken: list[dict[int, str]]
    said: list[str]
    stdout: str
    stderr: str


class Cluster:
    """Slurm, and the simulated servers of its nodes.

    Args:
        python: What runs the jobs.
    """

    def __init__(self, slurm: Slurm, python: Path) -> None:
        self.slurm, self.servers, self.python = slurm, slurm.servers, python
        self._runs = 0

    def new_run(self, count: int = 1) -> Run:
        """For jobs of which none ends before so many have what they take."""
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
        """Run jobs to their end that are all there at the same time, each of which takes ``gib`` on its GPUs.

        Args:
            arguments: Of ``program``, which starts the jobs.
            before: In front of the job's own command.
            batch: A shell script for ``sbatch`` instead, in which ``{job}`` is the job's command.
            scripts: How many jobs of ``sbatch`` run it.
            dies: The rank whose memory runs out.
            kept: What somebody else's job, which uses no GPU, was given before: Slurm grants the lowest numbers first.
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
        # pytest explains bare assertions in files of tests only.
        assert (done.returncode != 0) == bool(dies), f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        taken = [each.gpus for each in run.taken(*self.servers)]
        return Done(taken, lines_of_autogpu(done.stderr), done.stdout, done.stderr)

    @contextmanager
    def kept_from_others(self, *arguments: str) -> Iterator[None]:
        """These resources are another's meanwhile."""
        job = self.slurm.popen(*arguments, command=["/bin/sh", "-c", "echo; exec cat"])
        job.stdout.readline()
        try:
            yield
        finally:
            job.communicate(timeout=60)
