from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest

from tests.policy.workplace import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    # Group write bits decide about trust, so the mask is the test's and not the machine's.
    before = os.umask(0o022)
    yield Workplace(tmp_path / "machine")
    os.umask(before)
