"""Sentences about hosts that gave no status."""

import pytest

from autogpu.reporting.remote import remote_problem
from autogpu.status.model import RemoteFault, RemoteProblem

OTHER_OUTPUT = "the output is not that of `autogpu status --json`"
SET = "and printed no autogpu status; set the command with --remote-command"

CASES = [
    (RemoteProblem(RemoteFault.NO_ANSWER, number=10.0), "no answer within 10 s"),
    (RemoteProblem(RemoteFault.TOO_LARGE, number=4), "the host's output is larger than 4 MiB and is ignored"),
    (RemoteProblem(RemoteFault.SSH_FAILED, "no route to {host}"), "no route to {host}"),
    (
        RemoteProblem(RemoteFault.SSH_FAILED),
        "ssh failed without a message; run ssh to this host to find the cause",
    ),
    (
        RemoteProblem(RemoteFault.NOTHING_PRINTED, "broken", 3),
        f"the remote command exited with status 3 (broken) {SET}",
    ),
    (RemoteProblem(RemoteFault.NOTHING_PRINTED), f"the remote command exited with status 0 {SET}"),
    (RemoteProblem(RemoteFault.NOT_JSON, "Expecting value"), f"{OTHER_OUTPUT}: Expecting value"),
    (
        RemoteProblem(RemoteFault.OTHER_VERSION),
        "the output is not version 1 of `autogpu status --json`; install the same autogpu on both hosts",
    ),
    (RemoteProblem(RemoteFault.FIELD_MISSING, "gpus"), f"{OTHER_OUTPUT}: gpus is missing"),
    (RemoteProblem(RemoteFault.NOT_A_LIST, "gpus"), f"{OTHER_OUTPUT}: gpus is not a list"),
    (RemoteProblem(RemoteFault.INVALID_FIELD, "index", kind="int"), f"{OTHER_OUTPUT}: index is not a valid int"),
]


def test_each_remote_fault_has_a_sentence():
    assert {problem.fault for problem, _ in CASES} == set(RemoteFault)


@pytest.mark.parametrize(("problem", "sentence"), CASES)
def test_sentence_about_a_host_without_status_has_the_reason(problem, sentence):
    assert remote_problem(problem) == sentence


def test_text_from_a_hostile_host_is_escaped_and_cut():
    line = remote_problem(RemoteProblem(RemoteFault.SSH_FAILED, "\x1b[2J" * 1000))
    assert (line.isprintable(), len(line)) == (True, 400)
