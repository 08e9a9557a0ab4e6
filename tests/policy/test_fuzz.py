"""Fuzz tests: random files, variables and flags resolve to a valid policy, and nothing raises.

``make test-fuzz`` tries 100,000 cases and prints its seed; FUZZ_SEED repeats them. Other runs try 150 cases.
"""

import os
import random
import time

import pytest

from autogpu.policy import KEYS
from autogpu.reporting.mistakes import policy_problem
from tests.support.environments import ROOT

CASES = int(os.environ.get("FUZZ_CASES", "150"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or time.time_ns() % 10**9

NAMES = [key.name for key in KEYS] + [key.section for key in KEYS] + ["tool", "autogpu", "cuont", "a.b.c", '"', ""]
WORDS = [
    *("true", "false", "0", "1", "-1", "2", "1e9", "9" * 30, "inf", "nan", "1_0", "0x10", "1979-05-27", "07:32:00"),
    *('"all"', '"6GiB"', '"50%"', '"8 gb"', '"-1GiB"', '"30m"', '"1h30"', '"share"', '"Wait"', '""', "''", '"""x"""'),
    *("[]", '["0-3"]', '["*A100*", 1]', "[[[]]]", "{}", "{a = 1}", '["GPU-' + "0" * 40 + '"]', '"select.count"'),
    *('"\\u202e\\u001b[2J"', '"' + "é" * 300 + '"', '"' + "x" * 5000 + '"'),
    *("\\", "#", "=", "]", "}", '"', "'", "\0", "\r"),
]
TEXTS = [word.strip("\"'") for word in WORDS]
TEXTS += [",,,", "a,b", " 1 ", "1 GiB", "٣", "½", "1,2,", "*", "[!a]", "0-" + "9" * 20]


class Fuzz:
    """Generator of random policy files, variables and flags."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self._example = (ROOT / "autogpu.toml.example").read_bytes()

    def file(self):
        """Return random bytes, a damaged example file, or random TOML lines, some of them damaged."""
        kind = self.random.randrange(4)
        if kind == 0:
            return bytes(self.random.randrange(256) for _ in range(self.random.randrange(200)))
        if kind == 1:
            return self._damaged(self._example)
        text = "".join(self._line() for _ in range(self.random.randrange(12))).encode("utf-8", "surrogatepass")
        return self._damaged(text) if kind == 2 else text

    def _line(self):
        pick = self.random.choice
        kind = self.random.randrange(10)
        if kind < 3:
            return f"[{'[' * (kind == 0)}{pick(NAMES)}{']' * (kind != 2)}]\n"
        if kind == 3:
            return f"{pick(NAMES)}.{pick(NAMES)} = {pick(WORDS)}\n"
        if kind == 4:
            return pick(["# ", "\t", "  "]) + pick(WORDS) + pick(["\n", "\r\n", ""])
        return f"{pick(NAMES)} = {pick(WORDS)}\n"

    def _damaged(self, content):
        damaged = bytearray(content)
        for _ in range(self.random.randrange(1, 6)):
            begin = self.random.randrange(len(damaged) + 1)
            end = min(len(damaged), begin + self.random.randrange(30))
            other = self.random.randrange(len(damaged) + 1)
            damaged[begin:end] = self.random.choice([b"", b"\xff", damaged[other : other + 40], b'"', b"\n[", b"\x00"])
        return bytes(damaged)

    def variables(self):
        found = {}
        for _ in range(self.random.randrange(4)):
            name = self.random.choice([key.variable for key in KEYS] + ["AUTOGPU", "AUTOGPU_POLICY", "AUTOGPU_X"])
            found[name] = self.random.choice(TEXTS).replace("\0", "")
        return found

    def flags(self):
        """Return up to two flags, keyed by the names of their keys."""
        names = self.random.sample([key.name for key in KEYS if key.section], self.random.randrange(3))
        return {name: self.random.choice(TEXTS) for name in names}


def sound(resolved):
    """Assert that each key allows its value, and that each message is short and printable."""
    for key in KEYS:
        setting = resolved.settings[key.dotted]
        held = getattr(resolved.policy, key.attribute)
        # The policy drops entries of `locked` that are not keys.
        assert held <= setting.value if key.name == "locked" else held == setting.value
        if setting.overrides is not None:
            assert key.kind.read(key.kind.plain(setting.value)) == setting.value, (key.dotted, setting.value)
        assert setting.text.isprintable(), setting.text
    for problem in resolved.problems:
        line = policy_problem(problem)
        assert line.isprintable(), problem
        assert len(line) < 1500, problem


@pytest.mark.timeout(3600)
def test_random_input_gives_a_valid_policy_and_never_raises(workplace):
    print(f"\nFUZZ_SEED={SEED}")
    problems = 0
    for number in range(CASES):
        fuzz = Fuzz(SEED * 1_000_003 + number)
        files = [workplace.project / "autogpu.toml", workplace.project / "pyproject.toml"]
        files += [workplace.user_file, workplace.system_file]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            if fuzz.random.random() < 0.4:
                file.write_bytes(fuzz.file())
            elif file.exists():
                file.unlink()
        environ, flags = fuzz.variables(), fuzz.flags()
        begun_s = time.process_time()
        try:
            resolved = workplace.resolve(environ, flags=flags)
            sound(resolved)
        except BaseException as error:
            shown = {file.name: file.read_bytes() for file in files if file.exists()}
            raise AssertionError(f"FUZZ_SEED={SEED}, case {number}: {shown} {environ} {flags}: {error!r}") from error
        assert time.process_time() - begun_s < 10, f"FUZZ_SEED={SEED}, case {number} took long"
        problems += bool(resolved.problems)
    print(f"{CASES} policies, {problems} of them with problems; nothing raised, every value was allowed")
    assert problems > CASES // 4


@pytest.mark.parametrize(
    "unit", ["a = 1\n", "[a]\n", '"', "a.", "[", "{a=", "\\", "'", "#\n", "=", ",", " ", "\r", '"""']
)
def test_time_to_read_a_file_does_not_grow_quadratically(workplace, unit):
    spent = []
    for size in (16_000, 64_000):
        workplace.autogpu_toml((unit * size)[:size])
        begun_s = time.process_time()
        workplace.resolve()
        spent.append(time.process_time() - begun_s)
    # Four times the length takes a quadratic reader sixteen times as long. Up to 2 s are always allowed.
    assert spent[1] < max(12 * spent[0], 2.0), spent
