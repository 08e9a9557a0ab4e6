"""Which GPU a script is about to name to PyTorch's C++, told by its command line and its text. Pure.

A wrong guess costs a script the idlest GPU, so what could mean anything else counts as no number.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

# Not `cuda` alone, which is a yes or no as often, nor a short `-g`, which may be a count.
_OPTION = r"(?:gpu|device)(?:[-_]?(?:id|idx|index|no))?|cuda[-_]?(?:id|idx|index|no|device)|gpu[-_]device"
_NUMBER = r"(?:(?:cuda|gpu):)?([0-9]{1,4})"

# "--gpu=2", "device=cuda:2" and "train.device=2" as one word; "cuda:2" as any.
_ASSIGNED = re.compile(rf"-{{0,2}}(?:\w+\.)*(?:{_OPTION})=(.*)", re.IGNORECASE | re.DOTALL)
_FLAG = re.compile(rf"--?(?:{_OPTION})", re.IGNORECASE)
_VALUE = re.compile(_NUMBER, re.IGNORECASE)
_DEVICE = re.compile(r"cuda:([0-9]{1,4})")

# In a text: a number from elsewhere becomes that of a GPU.
_USES_NUMBER = re.compile(
    r"cuda:(?:\{|%|[\"']\s*(?:\+|,|\.format))|[\"']cuda[\"']\s*,\s*(?:index\s*=\s*)?(?!\w+\s*=)[A-Za-z_]"
    r"|\b(?:set_device|cuda\.device)\(\s*[A-Za-z_]|\.cuda\(\s*(?!non_blocking)[A-Za-z_]"
)

_COMMENT = re.compile(r"(?m)(?:^|\s)#.*$")
_BY_CALL = re.compile(
    # The thread's GPU, for all that says "cuda" after it; and what an option says where the command line does not.
    r"\bset_device\(\s*(?:device\s*=\s*)?(?:[\"']cuda:)?([0-9]{1,4})\b"
    r"|\bcuda\.device\(\s*(?:[\"']cuda:)?([0-9]{1,4})\b"
    rf"|[\"']--?(?:{_OPTION})[\"'][^()]{{0,200}}?\bdefault\s*=\s*(?:([0-9]{{1,4}})|[\"']{_NUMBER}[\"'])\s*[,)]"
)
_BY_NAME = re.compile(
    r"[\"']cuda:([0-9]{1,4})[\"']|[\"']cuda[\"']\s*,\s*(?:index\s*=\s*)?([0-9]{1,4})\b"
    r"|\.cuda\(\s*(?:device\s*=\s*)?([0-9]{1,4})\s*[,)]"
)
_CURRENT = re.compile(
    r"[\"']cuda[\"'](?!\s*,\s*(?:index\s*=\s*)?(?:[0-9]|[\w.\[\]]+\s*\)))|\.cuda\(\s*(?:\)|non_blocking)"
)
_MAKES_CURRENT = re.compile(r"\bset_device\(\s*[A-Za-z_]")


def named_ordinal(arguments: Sequence[object], text: str) -> int:
    """The one GPU that a script is about to use, as it counts them; 0 where none, or more than one, is named.

    What the command line says comes before what the text does: ``--gpu 2``, ``--device cuda:2``, ``device=2``; unless
    the text speaks of CUDA, and of no number that is given to it. In the text that is a call that makes a GPU the
    current one, or the default of such an option; or else ``cuda:2`` where nothing says ``cuda`` alone.

    Args:
        arguments: Of the script; text, but scripts may put anything there.
        text: The script itself; empty where that is unknown.
    """
    text = _COMMENT.sub("", text)
    # Where the text does not speak of CUDA, another module does.
    takes_numbers = "cuda" not in text or _USES_NUMBER.search(text) is not None
    named = _in_arguments([str(argument) for argument in arguments], takes_numbers=takes_numbers)
    if named is None:
        named = _in_text(text)
    return named.pop() if len(named) == 1 else 0


def _in_arguments(words: Sequence[str], *, takes_numbers: bool) -> set[int] | None:
    """``None`` where they say nothing; an empty set where they say something else.

    Args:
        takes_numbers: Whether a number alone can be meant for a GPU.
    """
    assigned = [match.group(1) for match in map(_ASSIGNED.fullmatch, words) if match]
    values = [*assigned, *(value for flag, value in zip(words, words[1:]) if _FLAG.fullmatch(flag))]
    devices = [match for match in map(_DEVICE.fullmatch, words) if match]
    if not values and not devices:
        return None
    numbers = [_VALUE.fullmatch(value) for value in values]
    if not all(numbers) or not (takes_numbers or all("cuda:" in value for value in values)):
        return set()
    return {int(match.group(1)) for match in [*numbers, *devices] if match}


def _in_text(text: str) -> set[int]:
    named = _numbers(_BY_CALL, text)
    if not named and (_MAKES_CURRENT.search(text) or not _CURRENT.search(text)):
        named = _numbers(_BY_NAME, text)
    return named


def _numbers(pattern: re.Pattern[str], text: str) -> set[int]:
    return {int(next(group for group in match.groups() if group)) for match in pattern.finditer(text)}
