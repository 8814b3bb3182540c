"""Who may reach a replica that `serve` starts, and that no secret is shown on the way."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from gateway_adapter.settings import GatewaySettings
from tests.cli.conftest import Run

KEY = "sk-a-key-that-must-never-be-printed"
DIGEST = f"sha256:{sha256(KEY.encode()).hexdigest()}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.test"])  # noqa: S104  # refused
def test_without_keys_only_a_loopback_address_is_bound(run: Run, served: list[GatewaySettings], host: str) -> None:
    """J9: whoever can reach another host would be served as the default tenant; so it takes keys."""
    refused = run("serve", "--host", host)
    assert refused.code == 2
    assert "--host" in refused.complaint
    assert "COORDINATOR_API_KEYS" in refused.complaint
    assert not served
    assert run("serve", "--host", host, COORDINATOR_API_KEYS=f"acme:{KEY}").code == 0
    assert served[0].host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_address_needs_no_keys(run: Run, served: list[GatewaySettings], host: str) -> None:
    """J9: on one's own machine it starts without any preparation."""
    assert run("serve", "--host", host).code == 0
    assert served[0].keys.tenant_of(None) == "default"


def test_keys_come_from_a_file_and_from_the_environment(
    run: Run, served: list[GatewaySettings], tmp_path: Path
) -> None:
    """J9: both name tenants, together or each for itself."""
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{DIGEST}"]\n')
    assert run("serve", "--keys", str(path), COORDINATOR_API_KEYS="beta:sk-beta").code == 0
    assert served[0].keys.tenants == ["acme", "beta"]
    assert served[0].keys.tenant_of(f"Bearer {KEY}") == "acme"
    assert served[0].keys.tenant_of("Bearer sk-beta") == "beta"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'[tenants.acme]\nkeys = ["{DIGEST}", "{KEY}"]\n', "line 2"),
        ("[tenants.acme]\nkeys = [\n", "line 2"),
        ("# nothing\n", "no key"),
        (None, "No such file"),
    ],
)
def test_a_mistake_in_the_keys_file_is_shown(
    run: Run, served: list[GatewaySettings], tmp_path: Path, text: str | None, says: str
) -> None:
    """J8: the file and the line, never a key."""
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text)
    ran = run("serve", "--keys", str(path))
    assert ran.code == 2
    assert str(path) in ran.complaint
    assert says in ran.complaint
    assert KEY not in ran.complaint
    assert not served


def test_a_mistake_in_the_variable_is_shown(run: Run, served: list[GatewaySettings]) -> None:
    """J8: which entry, never a key."""
    ran = run("serve", COORDINATOR_API_KEYS=f"acme:sk-1,{KEY}")
    assert ran.code == 2
    assert "COORDINATOR_API_KEYS, entry 2" in ran.complaint
    assert KEY not in ran.complaint
    assert not served


@pytest.mark.parametrize("flag", ["--api-keys", "--upstream-api-key"])
def test_secrets_are_not_taken_from_a_command_line(run: Run, served: list[GatewaySettings], flag: str) -> None:
    """J8: everybody on the machine could read them there."""
    ran = run("serve", flag, f"acme:{KEY}")
    assert ran.code == 2
    assert f"set COORDINATOR_{flag[2:].upper().replace('-', '_')}" in ran.complaint
    assert KEY not in ran.complaint
    assert not served


def test_the_upstream_key_comes_from_the_environment(run: Run, served: list[GatewaySettings]) -> None:
    """J8: it reaches the settings, and two credentials for one upstream are a mistake."""
    assert run("serve", "--upstream", "http://h/v1", COORDINATOR_UPSTREAM_API_KEY=KEY).code == 0
    assert served[0].upstream_api_key == KEY
    ran = run("serve", "--upstream", f"http://u:{KEY}-2@h/v1", COORDINATOR_UPSTREAM_API_KEY=KEY)
    assert ran.code == 2
    assert "not both" in ran.complaint
    assert KEY not in ran.complaint


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{KEY}@h/0",
        f"redis://:{KEY}@h:x/0",
        f"redis://:{KEY}/@h/0",
        f"redis://?password={KEY}",
        f"rediss://{KEY}@",
    ],
)
def test_a_wrong_store_url_shows_no_password(run: Run, served: list[GatewaySettings], url: str) -> None:
    """J8: what is wrong with it is told without what is secret in it."""
    ran = run("serve", "--store", url)
    assert ran.code == 2
    assert "--store" in ran.complaint
    assert KEY not in ran.complaint
