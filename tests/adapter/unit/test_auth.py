"""API keys and the file they are written in."""

import hashlib

import pytest

from gateway_adapter.auth import ApiKeys, KeysError, new_key


def digest(key):
    """A key as the file writes it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def keys_file(tmp_path):
    """Write a keys file, give back its path."""

    def write(text):
        path = tmp_path / "keys.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def keys(keys_file):
    """Two tenants from a file."""
    path = keys_file(f'[tenants.acme]\nkeys = ["{digest("a1")}",\n  "{digest("a2").upper().replace("SHA", "sha")}"]\n'
                     f'[tenants."beta.x"]\nkeys = ["{digest("b1")}"]\n')  # fmt: skip
    return ApiKeys.load(path, None)


@pytest.mark.parametrize(
    ("header", "tenant"),
    [("Bearer a1", "acme"), ("bearer a2", "acme"), ("BEARER  b1 ", "beta.x")],
)
def test_a_key_leads_to_its_tenant(keys, header, tenant):
    """A1: the tenant is the one the bearer's key is written under, whichever of its keys it is."""
    assert keys.tenant_of(header) == tenant


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "a1",
        "Bearer",
        "Bearer ",
        "Basic a1",
        "Bearer a1 a1",
        "Bearer A1",
        "Bearer é",
        "Bearer \udcff",
        "Beärer a1",
    ],
)
def test_any_other_bearer_is_refused(keys, header):
    """J9: a wrong, missing or non-ASCII bearer has no tenant."""
    assert keys.tenant_of(header) is None


@pytest.mark.parametrize("header", [None, "Bearer x", "Bearer \udcff"])
@pytest.mark.parametrize("inline", [None, "", "  "])
def test_without_keys_everybody_is_the_default_tenant(header, inline):
    """J9: with no keys configured the gateway is open and its one tenant is `default`."""
    keys = ApiKeys.load(None, inline)
    assert keys.open
    assert keys.tenant_of(header) == "default"


def test_inline_keys(keys_file):
    """A1: keys from the environment name their tenant before the first colon, and join those of the file."""
    keys = ApiKeys.load(keys_file(f'[tenants.acme]\nkeys = ["{digest("a1")}"]'), "acme:k1, beta:k:2 ,acme:k3")
    assert not keys.open
    tenants = [keys.tenant_of(f"Bearer {key}") for key in ("a1", "k1", "k:2", "k3", "k2")]
    assert tenants == ["acme", "acme", "beta", "acme", None]


def test_a_new_key_is_admitted_by_its_lines(keys_file):
    """J9: the printed lines admit the printed key, and only that."""
    for tenant in ("acme", "a.b", "7_-x"):
        key, lines = new_key(tenant)
        keys = ApiKeys.load(keys_file(lines), None)
        assert keys.tenant_of(f"Bearer {key}") == tenant
        assert key not in lines
        assert new_key(tenant)[0] != key
    with pytest.raises(KeysError, match="1 to 64"):
        new_key("a b")


GOOD = digest("a1")
WRONG = {
    "syntax": (f'[tenants.acme]\nkeys = ["{GOOD}"\nx = 1\n', 3),
    "unfinished": ('[tenants.acme]\n\nkeys = ["', 3),
    "twice": (f'[tenants.acme]\nkeys = ["{GOOD}"]\n[tenants.acme]\n', 3),
    "not UTF-8": (b"[tenants.acme]\n# \xff\n", 2),
    "tenant name": (f'# a b\n[tenants."a b"]\nkeys = ["{GOOD}"]\n', 2),
    "tenant name too long": (f'\n\n[tenants.{"a" * 65}]\nkeys = ["{GOOD}"]\n', 3),
    "digest": (f'[tenants.acme]\nkeys = [\n  "{GOOD}",  # sha256:12\n  "sha256:12",\n]\n', 4),
    "digest and more": (f'[tenants.acme]\nkeys = ["{GOOD}0"]\n', 2),
    "no digest": ('[tenants.acme]\nkeys = ["plain-key"]\n', 2),
    "key a number": (f'[tenants.acme]\nkeys = [\n"{GOOD}",\n7]\n', 4),
    "keys a string": (f'[tenants.acme]\n\nkeys = "{GOOD}"\n', 3),
    "keys missing": (f'[tenants.acme]\nkeys = ["{GOOD}"]\n\n[tenants.beta]\n', 4),
    "tenant no table": (f'[tenants]\nacme = ["{GOOD}"]\n', 2),
    "tenants no table": ('\ntenants = "acme"\n', 2),
    "unknown table": (f'[tenants.acme]\nkeys = ["{GOOD}"]\n[other]\nx = 1\n', 3),
    "unknown entry": (f'[tenants.acme]\nkeys = ["{GOOD}"]\nkey = "x"  # keys\n', 3),
    "one key, two tenants": (f'[tenants.acme]\nkeys = ["{GOOD}"]\n[tenants.beta]\nkeys = [\n"{GOOD}"]\n', 5),
    "no key": ("# nothing yet\n", 1),
    "no key of any tenant": ("[tenants.acme]\nkeys = []\n", 1),
    "empty": ("", 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_the_keys_file_is_found_by_its_line(keys_file, case):
    """J9: a keys file with a mistake admits nobody; the message names file and line and repeats no key."""
    text, line = WRONG[case]
    path = keys_file(text)
    with pytest.raises(KeysError) as wrong:
        ApiKeys.load(path, None)
    assert str(wrong.value).startswith(f"{path}, line {line}: ")
    assert "plain-key" not in str(wrong.value)


def test_a_missing_keys_file_is_a_mistake(tmp_path):
    """J9: a keys file that cannot be read does not open the gateway."""
    with pytest.raises(KeysError, match=r"absent\.toml: cannot be read"):
        ApiKeys.load(tmp_path / "absent.toml", None)


@pytest.mark.parametrize(
    "inline", ["acme", "acme:", ":k", "a b:k", "acme:k1,", "acme:kéy", "acme:a b", "acme:k1,beta:k1"]
)
def test_a_mistake_in_inline_keys_is_named_without_the_key(inline):
    """J8, J9: a mistake in the environment's keys is named by its entry and repeats no key."""
    with pytest.raises(KeysError, match=r"^COORDINATOR_API_KEYS, entry [12]: ") as wrong:
        ApiKeys.load(None, inline)
    assert "k1" not in str(wrong.value)


def test_a_key_may_be_listed_twice_for_one_tenant(keys_file):
    """J9: repeating a key under its own tenant harms nobody."""
    keys = ApiKeys.load(keys_file(f'[tenants.acme]\nkeys = ["{GOOD}", "{GOOD}"]'), "acme:a1")
    assert keys.tenant_of("Bearer a1") == "acme"
