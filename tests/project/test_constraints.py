"""The pins: one version for everything that the project and its tests use, on any CPython from 3.11 on."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][0-9A-Za-z.]*)(  # .*)?")
LINES = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DIRECT = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
UNIX = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}


def pins() -> dict[str, str]:
    """Version by normalised name."""
    found = [match for line in LINES if (match := PIN.fullmatch(line))]
    return {canonicalize_name(match[1]): match[2] for match in found}


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """Everything those need on the oldest and on a current Python, as far as it is installed: name and needed by."""
    needed: dict[str, str] = {}
    waiting = [("pyproject.toml", requirement) for requirement in requirements]
    asked = set()
    while waiting:
        by, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in asked:
            continue
        asked.add((name, frozenset(requirement.extras)))
        needed.setdefault(name, by)
        if name == "async-timeout":  # for Pythons before 3.11.3 only, so it is not installed to be asked
            continue
        further = map(Requirement, distribution(name).requires or ())
        waiting += [(name, each) for each in further if applies(each, requirement.extras)]
    return needed


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Whether it is needed on Linux by CPython 3.11.0 or 3.13 when those extras are asked for."""
    if requirement.marker is None:
        return True
    pythons = (
        {"python_version": "3.11", "python_full_version": "3.11.0"},
        {"python_version": "3.13", "python_full_version": "3.13.0"},
    )
    return any(
        requirement.marker.evaluate({**UNIX, **python, "extra": extra}) for python in pythons for extra in {"", *extras}
    )


def test_every_line_is_a_name_and_a_version() -> None:
    """The file holds nothing that leads to another place: no address, no option, no path."""
    assert not [line for line in LINES if not PIN.fullmatch(line)]
    assert len(pins()) == len(LINES), "a name twice"


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_what_is_asked_for_is_pinned_within_its_range(requirement: Requirement) -> None:
    """The versions that are tested are among those that an installation may choose."""
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)], prereleases=True)


def test_what_that_needs_is_pinned_and_nothing_else() -> None:
    """No version is left to the day of the installation, and no pin is left over."""
    needed = closure(DIRECT)
    assert not needed.keys() - pins().keys()
    assert not pins().keys() - needed.keys()
