"""Who a request belongs to, computed from what it says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import Address, Declared, Explicit, Implicit, Minted, fingerprint, is_ours
from coordinator.identity import (
    declared_scope,
    framed_digest,
    generation_of,
    new_nonce,
    parse_session_id,
    physical_scope,
    record_digest,
    session_scope,
    target_of,
)

CID = "d" + 24 * "a"
NONCE = 16 * "b"
OURS = f"ses_{CID}_7_{NONCE}"
texts = st.lists(st.text(max_size=6), max_size=4)


@given(texts, texts)
def test_parts_are_framed(one: list[str], other: list[str]) -> None:
    """D1, B51: two lists of parts have one digest only when they are equal, however they read when glued together."""
    assert (framed_digest(*one) == framed_digest(*other)) == (one == other)
    assert (fingerprint(*one) == fingerprint(*other)) == (one == other)


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_the_pair_is_the_conversation(source: str, key: str, other_source: str, other_key: str) -> None:
    """C1: (source, key) and nothing less; the tenant separates too; the same each time, on every replica."""
    cid = target_of("acme", Declared(source, key)).cid
    assert re.fullmatch("d[0-9a-f]{24}", cid)
    same = (source, key) == (other_source, other_key)
    assert (target_of("acme", Declared(other_source, other_key)).cid == cid) == same
    assert target_of("beta", Declared(source, key)).cid != cid
    assert target_of("acme", Declared(source, key)).named == ""


def test_kinds_never_meet() -> None:
    """B33, C2: the same text as an opening, a chosen id, a pair or a minted one is four conversations."""
    addresses: list[Address] = [Implicit((b"a", b"b")), Explicit("a"), Declared("a", "b"), Minted(), Minted()]
    targets = [target_of("acme", address) for address in addresses]
    assert [target.kind for target in targets] == ["i", "x", "d", "m", "m"]
    assert len({target.cid[1:] for target in targets}) == 5
    assert [bool(target.retired_id) for target in targets] == [False, True, False, False, False]


def test_an_id_of_ours_leads_to_its_conversation() -> None:
    """B1: without asking anybody; whatever else a client writes is an id that it chose."""
    target = target_of("acme", Explicit(OURS))
    assert (target.cid, target.named, target.kind) == (CID, OURS, "d")
    ours = parse_session_id(OURS)
    assert ours is not None
    assert (ours.cid, ours.generation, ours.nonce) == (CID, 7, NONCE)
    assert (generation_of(OURS), generation_of("mine")) == (7, 1)


@pytest.mark.parametrize(
    "session_id",
    [
        "ses_foo",
        OURS + "\n",
        " " + OURS,
        OURS.upper(),
        OURS + "0",
        OURS.replace("_7_", "_-7_"),
        OURS.replace("_7_", "_\u0667_"),
        OURS.replace("_7_", "_" + 16 * "7" + "_"),
        OURS.replace("ses_d", "ses_e"),
        "",
    ],
)
def test_what_only_looks_like_ours_is_a_clients(session_id: str) -> None:
    """B1: only the full pattern is ours."""
    assert not is_ours(session_id)
    assert parse_session_id(session_id) is None
    assert target_of("acme", Explicit(session_id)).kind == "x"


@given(st.text(min_size=1, max_size=20))
def test_a_retired_id_is_a_small_number(session_id: str) -> None:
    """E6: a digest of 63 bits and one of 4,096 buckets, whatever the id."""
    target = target_of("acme", Explicit(session_id))
    assert 0 <= int(target.retired_id) < 2**63
    assert re.fullmatch("[0-9a-f]{3}", target.retired_bucket)


def test_scopes_of_declared_conversations() -> None:
    """D1, D2: of tenant, conversation, generation and nonce: each of them makes another."""
    scopes = [
        declared_scope("acme", CID, 7, NONCE),
        declared_scope("beta", CID, 7, NONCE),
        declared_scope("acme", CID[:-1] + "b", 7, NONCE),
        declared_scope("acme", CID, 8, NONCE),
        declared_scope("acme", CID, 7, NONCE[:-1] + "c"),
    ]
    assert all(re.fullmatch("gwk_[0-9a-f]{24}", scope) for scope in scopes)
    assert len(set(scopes)) == 5
    assert session_scope("acme", CID, OURS, 7, NONCE) == scopes[0]
    assert session_scope("acme", CID, "whatever it is called", 7, NONCE) == scopes[0]


@given(st.text(max_size=20), st.text(max_size=20))
def test_scopes_of_other_sessions(session_id: str, nonce: str) -> None:
    """D5: of tenant, id and nonce, told apart from declared ones."""
    scope = physical_scope("acme", session_id, nonce)
    assert re.fullmatch("gws_[0-9a-f]{24}", scope)
    assert physical_scope("acme", session_id, nonce) == scope
    assert len({scope, physical_scope("beta", session_id, nonce), physical_scope("acme", session_id, nonce + "0")}) == 3
    assert session_scope("acme", "x" + 24 * "0", session_id, 1, nonce) == scope


def test_records_have_names_of_their_own() -> None:
    """B33: a digest of the id, never the id; and nonces are not repeated."""
    digests = {record_digest(text) for text in ("a", "a|b", "*", "{}", "é", "e\u0301", " a")}
    assert len(digests) == 7
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests)
    assert len({new_nonce() for _ in range(1_000)}) == 1_000
