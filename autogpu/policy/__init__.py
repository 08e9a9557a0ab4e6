"""The settings of a process, read from every layer and merged, each with where it was set."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Mapping, Sequence

from autogpu.frozen import replace
from autogpu.policy import check, model, sources
from autogpu.policy.kinds import MemoryLimit, of_own_groups
from autogpu.policy.model import BY_DOTTED, KEYS, SYSTEM_FILE, Origin, Policy, Problem, Resolved, Setting
from autogpu.policy.sources import working_directory
from autogpu.reporting.text import short_path
from autogpu.variables import POLICY_FILE, SWITCH

# Also what callers know by the package's name.
__all__ = ["BY_DOTTED", "KEYS", "SYSTEM_FILE", "MemoryLimit", "Origin", "Policy", "Problem", "Resolved", "Setting"]
__all__ += ["problems_of", "resolve", "working_directory"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.policy.check import Layer


def resolve(
    environ: Mapping[str, str],
    *,
    script: Path | None,
    working_directory: Path,
    flags: Mapping[str, str] | None = None,
    system_file: Path = SYSTEM_FILE,
) -> Resolved:
    """Read every layer and merge them. Bad input never raises: it becomes ``problems``, and the rest holds.

    Args:
        environ: Gives ``HOME``, ``XDG_CONFIG_HOME`` and ``AUTOGPU_*``. Without ``HOME`` there is no user file.
        script: ``None`` at a prompt, with ``-c`` and in a notebook.
        working_directory: Where the search for a project file goes on, and what ``AUTOGPU_POLICY`` is relative to.
        flags: The command line of ``autogpu run``: key to text, as in the environment.
    """
    homes, user_file = sources.homes_of(environ), sources.user_file_of(environ)
    # Who can write there owns the host, or the home.
    system = sources.source_of(homes, model.SYSTEM, system_file)
    user = sources.source_of(homes, model.USER, user_file) if user_file else sources.Source(model.USER)
    named = environ.get(POLICY_FILE, "").strip()
    if named:
        project = sources.named_source(homes, named, working_directory)
    else:
        project = sources.found_source(homes, script, working_directory, (system_file, user_file))
    files = [check.file_layer(source) for source in (system, user, project)]
    settings, locked, problems = _merged([*files, check.environment_layer(environ), check.flag_layer(flags or {})])
    return Resolved(
        policy=_policy(settings, locked),
        settings=MappingProxyType(settings),
        problems=problems,
        system_notes=tuple(files[0].unknown),
        project_file=project.file,
        files=tuple(s.file for s in (system, user, project) if s.file and s.table is not None),
    )


def problems_of(file: Path, environ: Mapping[str, str], *, is_system: bool = False) -> tuple[Problem, ...]:
    """The mistakes in one file, wherever it is and whose it is; in the host's own, unknown names are some too."""
    homes = sources.homes_of(environ)
    source = sources.source_of(homes, model.SYSTEM if is_system else model.PROJECT, file)
    if not source.file and not source.problems:
        origin = Origin(source.layer, short_path(file, homes), file)
        return (Problem(f"{origin} has no [tool.autogpu]", "nothing is read from it", origin),)
    layer = check.file_layer(source)
    return (*_merged([layer])[2], *layer.unknown)


def _merged(layers: Sequence[Layer]) -> tuple[dict[str, Setting], frozenset[str], tuple[Problem, ...]]:
    """Stack layers on the defaults, lowest first: the settings, those that the system file locks, and what is wrong."""
    origin = Origin(model.DEFAULT, model.DEFAULT)
    settings = {key.dotted: Setting(key.dotted, key.default, origin) for key in KEYS}
    problems = [problem for layer in layers for problem in check.bounded(layer.problems)]
    locked: Mapping[str, Origin] = {}
    for layer in layers:
        for dotted, (value, origin) in layer.values.items():
            held = settings[dotted]
            # The start-up hook obeys AUTOGPU=0 before this package is even imported, whatever is locked.
            if dotted not in locked or (origin.place == SWITCH and value is False):
                settings[dotted] = Setting(dotted, value, origin, held)
            elif value != held.value:
                what = f"{origin}: {dotted} is locked by {locked[dotted]}"
                problems.append(Problem(what, "", origin, dotted))
        if layer.name == model.SYSTEM:
            locked = check.locks(layer)
    return settings, frozenset(locked), tuple(_with_outcome(problem, settings) for problem in problems)


def _policy(settings: Mapping[str, Setting], locked: frozenset[str]) -> Policy:
    values = {key.attribute: settings[key.dotted].value for key in KEYS}
    values["locked"] = locked
    if isinstance(values["per_user"], dict):
        values["per_user"] = of_own_groups(values["per_user"])
    return Policy(**values)  # type: ignore[arg-type]  # the kinds in KEYS give what the fields declare; a test holds it


def _with_outcome(problem: Problem, settings: Mapping[str, Setting]) -> Problem:
    """Add what is used instead, which is only known when all layers are merged."""
    if problem.key is None:
        return problem
    used = settings[problem.key]
    if used.origin.layer != model.DEFAULT:
        return replace(problem, instead=f"{used.text} from {used.origin} is used")
    is_unset = used.text in ('""', "[]")
    return replace(problem, instead="the setting is ignored" if is_unset else f"the default {used.text} is used")
