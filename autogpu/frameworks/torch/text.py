"""What a program's text does with GPUs' numbers: which it names, and which of its options it takes for one. Pure.

The text is parsed, and values are followed through assignments, calls and returns, whatever the order and the scope:
enough to tell ``--gpu 2`` that ends in ``torch.device`` from a count of GPUs. Imported only where CUDA starts.
"""

from __future__ import annotations

import ast
import re
import warnings

from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator, Mapping, Sequence

# Of the values that are followed: far more than a script needs, and a fraction of a second.
_MOST_STEPS = 20_000
_DEEPEST = 24

_DEVICE = re.compile(r"(?:cuda:)?([0-9]{1,4})")

# Calls whose first argument is a GPU: by its number, or as a device.
_TAKES_DEVICE = ("set_device", "set_default_device", "device", "cuda", "to", "to_empty", "DeviceStatsMonitor")
_TAKES_NUMBER = ("set_device", "cuda")
_MAKES_CURRENT = ("set_device", "set_default_device")
_KEYWORDS = ("device", "map_location", "main_gpu")
_LISTS = ("devices", "device_ids", "gpus", "gpu_ids")

# They speak of a kind of device.
_ONLY_KINDS = ("autocast", "GradScaler", "custom_fwd", "custom_bwd", "get_device_module", "init_process_group")

_DECLARES = ("add_argument", "option", "argument", "add_option")
_FLAGS = re.compile("DEFINE_[a-z_]+")
_RUNS_FUNCTION = ("Fire", "run", "cli", "command", "entrypoint")

# Through these a value passes as it is.
_KEEPS = ("int", "str", "list", "tuple", "split", "strip", "format", "lower", "device", "Argument", "Option")


@frozen
class Value:
    """What may become a GPU's number.

    Attributes:
        number: The number itself; ``None`` for another kind of value.
        option: An option of the command line by its name, or by its place where it has none.
        is_current: ``"cuda"`` alone: the thread's current GPU.
        makes_current: It becomes the thread's current GPU.
        is_told: It comes from where this text does not say, such as from a parent process.
    """

    number: int | None = None
    option: str | int | None = None
    is_current: bool = False
    makes_current: bool = False
    is_told: bool = False


@frozen
class Option:
    """One that the text declares.

    Attributes:
        flags: As they are written, ``--gpu`` and ``-g``; empty for one that goes by its place alone.
        default: Its value where the command line does not name it.
        place: Among those without a flag, from 0; ``None`` for others.
        takes_value: False for a yes or no.
    """

    flags: tuple[str, ...] = ()
    default: object = None
    place: int | None = None
    takes_value: bool = True


@frozen
class Program:
    """What a text says.

    Attributes:
        values: Each that may become a GPU's number.
        options: Those that it declares, by the name under which it reads them.
    """

    values: frozenset[Value] = frozenset()
    options: Mapping[str, Option] = {}


class _TooMuch(Exception):
    """There is more to follow than is worth it."""


def read(sources: Iterable[bytes]) -> Program:
    """What a program says; nothing where it can't be understood.

    Args:
        sources: The files of its modules, or what they may be.
    """
    trees = []
    for source in sources:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python has shown them, or will
                trees.append(ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    try:
        return _Reader(trees).program()
    except (_TooMuch, RecursionError):
        return Program()


def local_imports(source: bytes) -> list[str]:
    """The modules that a text imports, as paths without an end, for those that lie beside it."""
    found = []
    pattern = rb"(?m)^[ \t]*(?:from[ \t]+\.*([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))"
    for match in re.finditer(pattern, source):
        for name in (match.group(1) or match.group(2)).decode(errors="replace").split(","):
            words = name.split()
            if words:
                found.append(words[0].strip(".").replace(".", "/"))
    return list(dict.fromkeys(found))


def _name(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.AST | None) -> Any:
    """A literal's value; ``None`` for all else. Up to Python 3.7 each kind has a node of its own."""
    try:
        return ast.literal_eval(node) if isinstance(node, ast.AST) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Reader:
    """One program."""

    def __init__(self, trees: Sequence[ast.AST]) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)]
        self._steps = 0
        self._assigned: dict[str, list[ast.AST]] = {}
        self._parameters: dict[str, list[ast.AST]] = {}
        self._functions: dict[str, Any] = {}
        self._options: dict[str, Option] = {}
        self._aside: set[ast.AST] = set()
        self._found: dict[str, frozenset[Value]] = {}
        self._following: set[str] = set()
        self._led_back: set[str] = set()

    def program(self) -> Program:
        for node in self._nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._note_function(node)
        for node in self._nodes:
            self._note(node)
        values: set[Value] = set()
        for node in self._nodes:
            if node not in self._aside:
                values.update(self._used(node))
        return Program(frozenset(values), self._options)

    def _note_function(self, node: Any) -> None:
        self._functions[node.name] = node
        positional = [*getattr(node.args, "posonlyargs", ()), *node.args.args]
        defaults = [None] * (len(positional) - len(node.args.defaults)) + node.args.defaults
        pairs = [*zip(positional, defaults), *zip(node.args.kwonlyargs, node.args.kw_defaults)]
        for argument, default in pairs:
            self._parameters.setdefault(argument.arg, []).extend([] if default is None else [default])
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _name(called) in _RUNS_FUNCTION:
                self._note_run(node)

    def _note_run(self, node: Any) -> None:
        """A function whose parameters are the program's options."""
        positional = [*getattr(node.args, "posonlyargs", ()), *node.args.args]
        defaults = [None] * (len(positional) - len(node.args.defaults)) + node.args.defaults
        for argument, default in [*zip(positional, defaults), *zip(node.args.kwonlyargs, node.args.kw_defaults)]:
            if isinstance(default, ast.Call):  # typer.Option(2, "--gpu")
                default = default.args[0] if default.args else None
            name = argument.arg
            flags = (f"--{name}", f"-{name}", "--" + name.replace("_", "-"))
            self._options.setdefault(name, Option(flags, _constant(default)))

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.Compare, ast.Expr)):
            # `device.type == "cuda"`, and documentation.
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.value]
            self._aside.update(part for part in parts if isinstance(_constant(part), str))
        elif isinstance(node, ast.Call):
            self._note_call(node)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for each, its in zip(target.elts, value.elts):
                self._assign(each, its)
        elif _name(target):
            self._assigned.setdefault(_name(target), []).append(value)

    def _note_call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in _DECLARES or _FLAGS.fullmatch(name):
            self._declare(node, name)
        if name in _ONLY_KINDS:
            self._aside.update(ast.walk(node))
        self._aside.update(each.value for each in node.keywords if each.arg in ("device_type", "backend"))
        for each in node.args if name in ("Fire", "run", "cli") else ():
            if _name(each) in self._functions:
                self._note_run(self._functions[_name(each)])
        called = self._functions.get(name)
        if called is not None:
            named = [each.arg for each in [*getattr(called.args, "posonlyargs", ()), *called.args.args]]
            named = named[1:] if named[:1] in (["self"], ["cls"]) else named
            for parameter, argument in zip(named, node.args):
                self._parameters[parameter].append(argument)
            for keyword in node.keywords:
                if keyword.arg in self._parameters:
                    self._parameters[keyword.arg].append(keyword.value)

    def _declare(self, node: ast.Call, name: str) -> None:
        self._aside.update(ast.walk(node))
        said = {each.arg: each.value for each in node.keywords}
        names = [each for each in map(_constant, node.args) if isinstance(each, str)]
        default = _constant(said.get("default"))
        if _FLAGS.fullmatch(name):
            default = _constant(node.args[1]) if len(node.args) > 1 else default
            names = [f"--{names[0]}"] if names else []
        flags = tuple(each for each in names if each.startswith("-"))
        dest = _constant(said.get("dest")) or _destination(names, flags)
        if not dest:
            return
        is_yes_or_no = str(_constant(said.get("action"))).startswith("store_") or _constant(said.get("is_flag")) is True
        place = sum(each.place is not None for each in self._options.values()) if not flags else None
        self._options[dest] = Option(flags, default, place, takes_value=not is_yes_or_no)

    # What is used as a GPU's number

    def _used(self, node: ast.AST) -> Iterator[Value]:
        if isinstance(node, ast.Call):
            yield from self._used_by_call(node)
        elif isinstance(node, ast.keyword):
            if node.arg in _LISTS and isinstance(node.value, (ast.List, ast.Tuple)):
                for each in node.value.elts:
                    yield from self._follow(each, 0)
            elif node.arg in _KEYWORDS:
                yield from (value for value in self._follow(node.value, 0) if not value.is_told)
        else:
            yield from self._named_in(node)

    def _used_by_call(self, node: ast.Call) -> Iterator[Value]:
        name, first = _name(node.func), node.args[0] if node.args else None
        if name == "cuda" and isinstance(node.func, ast.Attribute) and first is None and not _device_of(node):
            yield Value(is_current=True)
        elif name == "format":
            yield from self._named_in(node)
        elif name in _TAKES_DEVICE and first is not None:
            second = _index_of_cuda(node)
            if second is not None:
                self._aside.add(first)
                yield from self._follow(second, 0)
            else:
                yield from self._used_as_device(first, node.func)

    def _used_as_device(self, node: ast.AST, function: ast.AST) -> Iterator[Value]:
        name = _name(function)
        is_of_cuda = name == "device" and _is_of_cuda(function)
        for value in self._follow(node, 0):
            if name in _MAKES_CURRENT or is_of_cuda:
                yield _made_current(value)
            elif name in _TAKES_NUMBER or not value.is_told:  # `x.to(y)` may be anything
                yield value

    def _named_in(self, node: ast.AST) -> Iterator[Value]:
        """A device in words, wherever it stands."""
        text = _constant(node) if isinstance(node, (ast.Constant, *_STRINGS)) else None
        if text == "cuda":
            yield Value(is_current=True)
        elif isinstance(text, str) and re.fullmatch(r"cuda:[0-9]{1,4}", text):
            yield Value(int(text[5:]))
        else:
            number = _after_cuda(node)
            if number is not None:
                yield from self._follow(number, 0)

    def _follow(self, node: ast.AST, depth: int) -> Iterator[Value]:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _TooMuch
        if depth > _DEEPEST:
            return
        constant = _constant(node)
        if constant is not None:
            yield from _literal(constant)
        elif isinstance(node, ast.IfExp):
            yield from self._all((node.body, node.orelse), depth)
        elif isinstance(node, ast.BoolOp):
            yield from self._all(node.values, depth)
        elif isinstance(node, ast.Name):
            yield from self._once(node.id, self._follow_name(node.id, depth))
        elif isinstance(node, ast.Attribute):
            yield from self._once("." + node.attr, self._follow_attribute(node.attr, depth))
        elif isinstance(node, ast.Subscript):
            yield from self._follow_item(node, depth)
        elif isinstance(node, (ast.List, ast.Tuple)):
            yield from self._all(node.elts, depth)
        elif isinstance(node, ast.ListComp):
            yield from self._all([each.iter for each in node.generators], depth)
        elif isinstance(node, ast.Call):
            yield from self._follow_call(node, depth)
        else:
            number = _after_cuda(node)
            if number is not None:
                yield from self._follow(number, depth + 1)
            elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
                yield Value(is_told=True)

    def _all(self, nodes: Sequence[ast.AST], depth: int) -> Iterator[Value]:
        for node in nodes:
            yield from self._follow(node, depth + 1)

    def _once(self, name: str, values: Iterator[Value]) -> frozenset[Value]:
        """What is found under a name, which may lead back to itself."""
        if name in self._following:
            self._led_back.add(name)
        if name not in self._found:
            self._found[name] = frozenset()
            self._following.add(name)
            self._found[name] = frozenset(values)
            self._following.discard(name)
        return self._found[name]

    def _follow_name(self, name: str, depth: int) -> Iterator[Value]:
        known = [*self._assigned.get(name, ()), *self._parameters.get(name, ())]
        found = frozenset(self._all(known, depth))
        yield from found
        # A function that passes on what it is given, under the same name, does not say where that comes from.
        is_passed_on = name in self._led_back and not found
        if name in self._options:
            yield Value(option=name)
        elif not known or is_passed_on:
            yield Value(is_told=True)

    def _follow_attribute(self, name: str, depth: int) -> Iterator[Value]:
        known = self._assigned.get(name, ())
        yield from self._all(known, depth)
        if name in self._options or not known:
            yield Value(option=name)

    def _follow_item(self, node: ast.Subscript, depth: int) -> Iterator[Value]:
        index = _constant(getattr(node.slice, "value", node.slice) if _is_index(node.slice) else node.slice)
        if _name(node.value) == "argv":
            yield Value(option=index - 1) if isinstance(index, int) and index > 0 else Value(is_told=True)
        elif _name(node.value) == "environ":
            yield Value(is_told=True)
        elif isinstance(index, str):
            yield from self._once("." + index, self._follow_attribute(index, depth))
        elif index == 0:
            yield from self._follow(node.value, depth + 1)
        else:
            yield Value(is_told=True)

    def _follow_call(self, node: ast.Call, depth: int) -> Iterator[Value]:
        name = _name(node.func)
        number = _after_cuda(node)
        second = _index_of_cuda(node)
        if number is not None:
            yield from self._follow(number, depth + 1)
        elif second is not None:
            yield from self._follow(second, depth + 1)
        elif name in _KEEPS and (node.args or isinstance(node.func, ast.Attribute)):
            inner = [node.func.value] if name in ("split", "strip", "lower") else node.args[:1]  # type: ignore[attr-defined]
            yield from self._all(inner, depth)
        elif name in self._functions:
            returned = [each.value for each in ast.walk(self._functions[name]) if isinstance(each, ast.Return)]
            known = [each for each in returned if each is not None]
            yield from self._once(name + "()", self._all(known, depth))
        else:
            yield Value(is_told=True)


# Up to Python 3.7; from 3.8 on they are ast.Constant, and from 3.12 on deprecated.
_STRINGS: tuple[type, ...] = () if hasattr(ast, "NamedExpr") else (ast.Str,)


def _is_index(node: ast.AST) -> bool:
    """Up to Python 3.8 an index is wrapped."""
    return type(node).__name__ == "Index"


def _destination(names: Sequence[str], flags: Sequence[str]) -> str:
    """The name under which a program reads an option; ``""`` for one without any."""
    long = [each for each in flags if each.startswith("--")] or list(flags) or list(names)
    own = [each for each in names if each.isidentifier() and flags]
    return (own or [each.lstrip("-").replace("-", "_") for each in long] or [""])[0]


def _index_of_cuda(node: ast.Call) -> ast.AST | None:
    """``i`` in ``torch.device("cuda", i)``."""
    if _name(node.func) != "device" or not node.args or _constant(node.args[0]) != "cuda":
        return None
    named = [each.value for each in node.keywords if each.arg == "index"]
    return next(iter([*node.args[1:2], *named]), None)


def _device_of(node: ast.Call) -> ast.AST | None:
    return next((each.value for each in node.keywords if each.arg == "device"), None)


def _is_of_cuda(node: ast.AST) -> bool:
    """``torch.cuda.device``, and not ``torch.device``."""
    return isinstance(node, ast.Attribute) and _name(node.value) == "cuda"


def _literal(constant: object) -> Iterator[Value]:
    if isinstance(constant, (list, tuple)):
        for each in constant:
            yield from _literal(each)
    elif constant == "cuda":
        yield Value(is_current=True)
    else:
        number = device_number(constant)
        if number is not None:
            yield Value(number)


def device_number(value: object) -> int | None:
    """The number in ``2``, ``"2"`` or ``"cuda:2"``; ``None`` for what is none of a GPU."""
    if isinstance(value, bool):
        return None
    found = _DEVICE.fullmatch(str(value)) if isinstance(value, (int, str)) else None
    return int(found.group(1)) if found else None


def _made_current(value: Value) -> Value:
    return Value(value.number, value.option, value.is_current, makes_current=True, is_told=value.is_told)


def _after_cuda(node: ast.AST) -> ast.AST | None:
    """What follows ``cuda:`` in a text that is put together; ``None`` for all else."""
    if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
        first, second = node.values
        if _constant(first) == "cuda:" and isinstance(second, ast.FormattedValue):
            return second.value
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add) and _constant(node.left) == "cuda:":
            return node.right
        if isinstance(node.op, ast.Mod) and _constant(node.left) in ("cuda:%d", "cuda:%s", "cuda:%i"):
            right = node.right
            return right.elts[0] if isinstance(right, ast.Tuple) and len(right.elts) == 1 else right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        is_formatted = node.func.attr == "format" and str(_constant(node.func.value)) in ("cuda:{}", "cuda:{0}")
        return node.args[0] if is_formatted else None
    return None
