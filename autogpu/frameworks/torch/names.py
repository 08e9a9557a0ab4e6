"""Which GPU a script is about to name to PyTorch's C++, told by its command line and its text. Pure.

A wrong guess costs a script the idlest GPU: so a number counts only where the text is seen to use it as a GPU's.
"""

from __future__ import annotations

from autogpu.frameworks.torch.text import Option, device_number
from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from autogpu.frameworks.torch.text import Program


@frozen
class Named:
    """The GPU that a script is about to use, as it counts them.

    Attributes:
        ordinal: 0 where none, or more than one, is named.
        is_told: It uses numbers that come from elsewhere, such as from a parent process.
    """

    ordinal: int = 0
    is_told: bool = False


def named(arguments: Sequence[object], program: Program) -> Named:
    """The one GPU that a program is about to use.

    What the command line says comes before what the text does: a number that makes a GPU the current one, or that
    stands where nothing says ``cuda`` alone.

    Args:
        arguments: Of the script; text, but scripts may put anything there.
        program: What its text says.
    """
    words = [str(argument) for argument in arguments]
    given: set[int] = set()
    written: set[int] = set()
    is_current = makes_current = is_told = False
    for value in program.values:
        number, is_given = value.number, False
        if value.option is not None:
            said, is_given = _said(value.option, words, program)
            number = device_number(said)
            is_current |= said == "cuda"
        is_current |= value.is_current
        is_told |= value.is_told
        if number is not None:
            makes_current |= value.makes_current
            (given if is_given else written).add(number)
    numbers = given or (written if makes_current or not is_current else set())
    return Named(numbers.pop() if len(numbers) == 1 else 0, is_told)


def _said(name: str | int, words: Sequence[str], program: Program) -> tuple[object, bool]:
    """An option's value, and whether the command line names it."""
    if isinstance(name, int):
        return (words[name], True) if name < len(words) else (None, False)
    option = program.options.get(name)
    found = _on_command_line(name, option or Option(), words)
    if found is not None:
        return found, True
    return (option.default if option else None), False


def _on_command_line(name: str, option: Option, words: Sequence[str]) -> str | None:
    if not option.takes_value:
        return None
    values = []
    for place, word in enumerate(words):
        before, equals, after = word.partition("=")
        # "trainer.device=cuda:1", as Hydra reads it, is for what no option declares.
        if equals and (before in option.flags or (not option.flags and before.rpartition(".")[2] == name)):
            values.append(after)
        elif word in option.flags and place + 1 < len(words):
            values.append(words[place + 1])
        elif any(len(flag) == 2 and word.startswith(flag) and word[2:].isdigit() for flag in option.flags):
            values.append(word[2:])
    if not values and option.place is not None and not any(word.startswith("-") for word in words):
        values = list(words[option.place : option.place + 1])
    return values[-1] if values else None
