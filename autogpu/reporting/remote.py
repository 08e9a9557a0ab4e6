"""Sentences about hosts that sent no status to ``autogpu status --on``."""

from __future__ import annotations

from autogpu.status.model import VERSION, RemoteFault, RemoteProblem
from autogpu.text import printable, span

_OTHER_OUTPUT = "the output is not that of `autogpu status --json`"

_SENTENCES = {
    RemoteFault.NO_ANSWER: "no answer within {span}",
    RemoteFault.TOO_LARGE: "the host's output is larger than {number} MiB and is ignored",
    RemoteFault.SSH_FAILED: "{detail}",
    RemoteFault.NOTHING_PRINTED: (
        "the remote command exited with status {number}{in_brackets} and printed no autogpu status; "
        "set the command with --remote-command"
    ),
    RemoteFault.NOT_JSON: f"{_OTHER_OUTPUT}: {{detail}}",
    RemoteFault.OTHER_VERSION: (
        f"the output is not version {VERSION} of `autogpu status --json`; install the same autogpu on both hosts"
    ),
    RemoteFault.FIELD_MISSING: f"{_OTHER_OUTPUT}: {{detail}} is missing",
    RemoteFault.NOT_A_LIST: f"{_OTHER_OUTPUT}: {{detail}} is not a list",
    RemoteFault.INVALID_FIELD: f"{_OTHER_OUTPUT}: {{detail}} is not a valid {{kind}}",
}
_SILENT_SSH = "ssh failed without a message; run ssh to this host to find the cause"


def remote_problem(problem: RemoteProblem) -> str:
    """Return the reason why another host sent no status. The text has no control characters of that host."""
    sentence = _SENTENCES[problem.fault]
    if problem.fault is RemoteFault.SSH_FAILED and not problem.detail:
        sentence = _SILENT_SSH
    in_brackets = f" ({problem.detail})" if problem.detail else ""
    return printable(sentence.format(**vars(problem), span=span(problem.number), in_brackets=in_brackets), 400)
