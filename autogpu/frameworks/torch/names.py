"""Which GPU a script is about to name to PyTorch's C++, told by its command line and its text. Pure."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_OPTION = r"(?:gpu|cuda|device|dev)(?:[-_]?(?:id|idx|index|no))?|(?:gpu|cuda)[-_]device"
_NUMBER = r"(?:(?:cuda|gpu):)?([0-9]{1,4})"

# "--gpu=2", "device=cuda:2" and "train.device=2" as one word; "cuda:2" as any.
_ASSIGNED = re.compile(rf"-{{0,2}}(?:\w+\.)*(?:{_OPTION})={_NUMBER}", re.IGNORECASE)
_FLAG = re.compile(rf"-g|--?(?:{_OPTION})", re.IGNORECASE)
_VALUE = re.compile(_NUMBER, re.IGNORECASE)
_DEVICE = re.compile(r"cuda:([0-9]{1,4})")

_COMMENT = re.compile(r"(?m)^\s*#.*|\s#\s.*$")
_BY_CALL = re.compile(
    # The thread's GPU, for all that says "cuda" after it; and what an option says where the command line does not.
    r"\bset_device\(\s*(?:[\"']cuda:)?([0-9]{1,4})\b"
    r"|\bcuda\.device\(\s*(?:[\"']cuda:)?([0-9]{1,4})\b"
    rf"|[\"']--?(?:{_OPTION})[\"'][^()]{{0,200}}?\bdefault\s*=\s*[\"']?{_NUMBER}\b"
)
_BY_NAME = re.compile(
    r"[\"']cuda:([0-9]{1,4})[\"']|[\"']cuda[\"']\s*,\s*(?:index\s*=\s*)?([0-9]{1,4})\b|\.cuda\(\s*([0-9]{1,4})\s*\)"
)
_CURRENT = re.compile(r"[\"']cuda[\"'](?!\s*,)|\.cuda\(\s*\)")


def named_ordinal(arguments: Sequence[str], text: str) -> int:
    """The one GPU that a script is about to use, as it counts them; 0 where none, or more than one, is named.

    What the command line says comes before what the text does: ``--gpu 2``, ``--device cuda:2``, ``device=2``. In the
    text that is a call that makes a GPU the current one, or the default of such an option; or else ``cuda:2`` where
    nothing says ``cuda`` alone.

    Args:
        arguments: Of the script.
        text: The script itself; empty where that is unknown.
    """
    named = _in_arguments(arguments)
    if not named:
        text = _COMMENT.sub("", text)
        named = _numbers(_BY_CALL, text)
        if not named and not _CURRENT.search(text):
            named = _numbers(_BY_NAME, text)
    return named.pop() if len(named) == 1 else 0


def _in_arguments(arguments: Sequence[str]) -> set[int]:
    found = [_ASSIGNED.fullmatch(word) or _DEVICE.fullmatch(word) for word in arguments]
    found += [
        _VALUE.fullmatch(value) for flag, value in zip(arguments, arguments[1:]) if _FLAG.fullmatch(flag) is not None
    ]
    return {int(match.group(1)) for match in found if match}


def _numbers(pattern: re.Pattern[str], text: str) -> set[int]:
    return {int(next(group for group in match.groups() if group)) for match in pattern.finditer(text)}
