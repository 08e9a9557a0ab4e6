"""What a framework asks of autogpu, and what it gets. A second framework is one more package beside this file."""

from __future__ import annotations

from types import MappingProxyType

from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ContextManager, Mapping, Protocol


@frozen
class Grant:
    """What a process may use.

    Attributes:
        ordinals: CUDA ordinals (positions in ``CUDA_VISIBLE_DEVICES``) of the GPUs to use; ``()`` means CPU only,
            ``None`` leaves the choice to the framework.
        growth: Whether memory is allocated as needed; ``None`` leaves it to the framework.
        caps: By CUDA ordinal, the most bytes that each logical GPU may allocate; no entry means no cap.
        logical_gpus: Into how many each GPU that has a cap is split.
    """

    ordinals: tuple[int, ...] | None = None
    growth: bool | None = None
    caps: Mapping[int, int] = MappingProxyType({})
    logical_gpus: int = 1


@frozen
class Usage:
    """What a framework is about to take, the script's own settings and the grant together.

    Attributes:
        ordinals: CUDA ordinals of the GPUs on which it makes a context.
        memory: How it allocates there, in words.
    """

    ordinals: tuple[int, ...]
    memory: str


@frozen
class Seams:
    """What of a framework was found to hook into; ``doctor`` shows it.

    Attributes:
        version: The framework's.
        found: Names, such as ``Context.config``.
        missing: What this version lacks, with what is not in force without it.
        essential: Whether enough was found for a choice when the framework makes its context. Where not, the
            environment alone has to do.
        obstacle: Why autogpu keeps its hands off altogether; ``""`` if it does not.
    """

    version: str = "?"
    found: tuple[str, ...] = ()
    missing: Mapping[str, str] = MappingProxyType({})
    essential: bool = False
    obstacle: str = ""


if TYPE_CHECKING:

    class Granter(Protocol):
        """What a framework calls, in this order, when it is about to take GPUs."""

        def guard(self) -> ContextManager[None]:
            """Around every step of ours: an error is reported once, and the framework goes on as without us.

            Lets through what a policy asks for: :class:`autogpu.errors.NoEligibleDevice`, ``SystemExit``.
            """

        def prepare(self) -> None:
            """The framework is about to initialise CUDA, or has done so: last call for the environment."""

        def grant(self, gpu_count: int, chosen: tuple[int, ...] | None) -> Grant:
            """Decide, once per process; later calls get the same answer.

            Args:
                gpu_count: How many GPUs the framework sees.
                chosen: Ordinals that the script named itself; ``None`` if it named none.
            """

        def took(self, usage: Usage) -> None:
            """The framework has settled what it takes; the first call is reported."""

        def made_context(self) -> None:
            """The framework has a context, the first or one more; in the first nothing is allocated yet."""

        def replicated(self, strategy: str, replicas: int) -> None:
            """A ``strategy`` that was not told which GPUs to use has made that many replicas."""

        def stood_aside(self, why: str) -> None:
            """The framework's GPUs are none that autogpu knows; it goes on as without us."""

        @property
        def granted(self) -> Grant | None:
            """The decision, once it has been made."""
