"""`keys new`: a key that the gateway admits, and a keys file that stays in order."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway_adapter.auth import ApiKeys
from tests.cli.conftest import Run

DIGEST = "sha256:" + "0" * 64


def admits(path: Path, key: str) -> str | None:
    """Whose the key is by that file."""
    return ApiKeys.load(path, None).tenant_of(f"Bearer {key}")


def test_a_key_is_printed_with_the_lines_that_admit_it(run: Run, tmp_path: Path) -> None:
    """J9: the key itself once, in the file only its digest."""
    ran = run("keys", "new", "acme")
    assert ran.code == 0
    key, _, lines = ran.out.partition("\n\n")
    path = tmp_path / "keys.toml"
    path.write_text(lines)
    assert admits(path, key) == "acme"
    assert key not in lines
    assert ran.err == ""


def test_json_has_the_same(run: Run, tmp_path: Path) -> None:
    """K2: for programs."""
    told = run("keys", "new", "a.b", "--json").json
    path = tmp_path / "keys.toml"
    path.write_text(told["toml"])
    assert told["tenant"] == "a.b"
    assert admits(path, told["key"]) == "a.b"


def test_keys_are_added_to_a_file(run: Run, tmp_path: Path) -> None:
    """J9: of new tenants and of known ones; the file is made when it is not there, for its owner alone."""
    path = tmp_path / "keys.toml"
    made = [(tenant, run("keys", "new", tenant, "--keys", str(path), "--json").json["key"]) for tenant in TENANTS]
    assert [admits(path, key) for _, key in made] == [tenant for tenant, _ in made]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(key in path.read_text() for _, key in made)


TENANTS = ("acme", "beta", "acme", "a.b", "a-b", "a.b", "beta", "acme")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# the keys of everybody, größe\n",
        f'[tenants.beta]\nkeys = ["{DIGEST}"]',
        f'[tenants.acme]\nkeys = ["{DIGEST}"]\n',
        f'# acme\n[ tenants . "acme" ]  # [them]\n# old ones\nkeys=[ "{DIGEST}" ]\n\n[tenants.beta]\nkeys = []\n',
        f"[tenants.acme]\r\nkeys = [\r\n    '{DIGEST}',  # of May\r\n]\r\n",
        f'[tenants.beta]\nkeys = ["{DIGEST}"]\n[tenants.acme]\nkeys = [\n  # none\n]\n',
    ],
)
def test_a_file_is_only_added_to(run: Run, tmp_path: Path, text: str) -> None:
    """J9: what stood there stays as it was, comments, line ends and rights included."""
    path = tmp_path / "keys.toml"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    ran = run("keys", "new", "acme", "--keys", str(path), "--json")
    assert ran.code == 0
    assert str(path) in ran.err
    assert admits(path, ran.json["key"]) == "acme"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    left = path.read_bytes().decode()
    for line in text.splitlines():
        assert line.partition("#")[2] in left
    if DIGEST in text:
        assert DIGEST in left


@pytest.mark.parametrize(
    "text",
    [
        f'tenants = {{acme = {{keys = ["{DIGEST}"]}}}}\n',
        f'[tenants]\nacme = {{keys = ["{DIGEST}"]}}\n',
        f'tenants.acme.keys = ["{DIGEST}"]\n',
    ],
)
def test_a_file_written_in_another_way_is_left_alone(run: Run, tmp_path: Path, text: str) -> None:
    """J9: where adding cannot be certain, it is left to a person, and no key is given out that nobody admits."""
    path = tmp_path / "keys.toml"
    path.write_text(text)
    ran = run("keys", "new", "acme", "--keys", str(path))
    assert ran.code == 1
    assert str(path) in ran.complaint
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["[tenants.acme\n", '[tenants.acme]\nkeys = ["plain"]\n', "[keys]\n"])
def test_a_file_with_a_mistake_is_not_added_to(run: Run, tmp_path: Path, text: str) -> None:
    """J8: the line is named, nothing is written."""
    path = tmp_path / "keys.toml"
    path.write_text(text)
    ran = run("keys", "new", "acme", "--keys", str(path))
    assert ran.code == 2
    assert f"{path}, line " in ran.complaint
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    """K2: exit code 1 and one line."""
    ran = run("keys", "new", "acme", "--keys", str(tmp_path / "missing" / "keys.toml"))
    assert ran.code == 1
    assert "No such file" in ran.complaint


def test_a_tenant_that_cannot_be_named_so_is_refused(run: Run) -> None:
    """J9: exit code 2 and one line."""
    ran = run("keys", "new", "a b")
    assert ran.code == 2
    assert "a tenant is" in ran.complaint
