"""The opening of a chat, which names an implicit session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.opening import opening_of

URL = "https://example.org/a.png"


def user(content):
    """A user message."""
    return {"role": "user", "content": content}


def system(content):
    """A system message."""
    return {"role": "system", "content": content}


def text(value, kind="text"):
    """A text part."""
    return {"type": kind, "text": value}


def image(url=URL, **fields):
    """An image part."""
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def opening(*messages, **fields):
    """The opening of a body with these messages."""
    return opening_of({"messages": list(messages), **fields})


SAME = {
    "string and part": (user("hi"), user([text("hi")])),
    "input_text": (user("hi"), user([text("hi", "input_text")])),
    "neighbouring texts": (user("hi you"), user([text("hi"), text(""), text(" you", "input_text")])),
    "image without detail": (user([image()]), user([image(detail="auto")])),
    "image detail null": (user([image()]), user([image(detail=None)])),
    "image as string": (user([image()]), user([{"type": "image_url", "image_url": URL}])),
    "input_image": (user([image(detail="low")]), user([{"type": "input_image", "image_url": URL, "detail": "low"}])),
    "file and input_file": (
        user([{"type": "file", "file": {"file_id": "f1"}}]),
        user([{"type": "input_file", "file_id": "f1", "filename": None}]),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_content_in_another_form_is_the_same_opening(case):
    """A4: a string and its parts, older and newer part names, and a default left out do not change the opening."""
    one, other = SAME[case]
    assert opening(one) == opening(other)


def test_only_the_opening_counts():
    """A1, A2: model, tools, roles of system texts and all that follows the first user message do not count."""
    first = opening(system("be kind"), user("hi"), model="a")
    later = [{"role": "assistant", "content": [{"type": "brand_new"}]}, user(None), system("other")]
    assert first == opening(system("be kind"), user("hi"), *later, model="b", tools=[1], temperature=0.5)
    assert first == opening({"role": "developer", "content": [text("be kind")]}, system(""), system(None), user("hi"))


DIFFERENT = [
    (user("hi"),),
    (user("hi "),),
    (user("system:text:hi"),),
    (system("hi"), user("hi")),
    (system("hi"), system("hi"), user("hi")),
    (system("hihi"), user("hi")),
    (system("a"), system("b"), user("hi")),
    (system("ab"), user("hi")),
    (user([image()]),),
    (user([image(), image()]),),
    (user([image(detail="high")]),),
    (user([image(URL + "?")]),),
    (user([text(URL)]),),
    (user([text("hi"), image()]),),
    (user([image(), text("hi")]),),
    (user([text("h"), image(), text("i")]),),
    (user([{"type": "input_image", "file_id": URL}]),),
    (user([{"type": "input_image", "file_id": "f1"}]),),
    (system([image()]), user("hi")),
    (user([image(), text("hi again")]),),
    (system([image()]), user("hi again")),
    (user([{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]),),
    (user([{"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}}]),),
    (user([{"type": "file", "file": {"file_id": "a"}}]),),
    (user([{"type": "file", "file": {"file_data": "a"}}]),),
    (user([{"type": "file", "file": {"file_data": "a", "filename": "n"}}]),),
    (user([{"type": "input_file", "file_url": "a"}]),),
    (user("\ud83d"),),
    (user("\ud83e"),),
    (user("\ufffd"),),
]


def test_what_differs_is_another_opening():
    """A1, A4: any difference in system texts, text, image URL or detail, audio or file makes another conversation."""
    assert len({opening(*messages) for messages in DIFFERENT}) == len(DIFFERENT)


def test_end_users_are_kept_apart():
    """A1: `user` and `safety_identifier` separate those who open alike; sent under both names, both count."""
    named = [
        {},
        {"user": "ann"},
        {"user": "bob"},
        {"user": "ann", "safety_identifier": "bob"},
        {"user": "bob", "safety_identifier": "ann"},
        {"user": "annbob"},
        {"user": "3:ann"},
    ]
    assert len({opening(user("hi"), **fields) for fields in named}) == len(named)
    assert opening(user("hi"), user="ann") == opening(user("hi"), safety_identifier="ann", user=None)
    assert opening(user("hi"), user="") == opening(user("hi"))


@given(texts=st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=2, max_size=2, unique=True))
def test_system_texts_never_run_together(texts):
    """A1: two lists of system texts are the same opening only when they are the same texts."""
    one, other = (opening(*map(system, pair), user("hi")) for pair in texts)
    assert one != other


@given(pairs=st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_fields_of_a_part_never_run_together(pairs):
    """A4: what one field of a part ends with is never taken for the beginning of the next."""
    one, other = (opening(user([image(f"u{url}", detail=f"d{detail}")])) for url, detail in pairs)
    assert one != other


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no messages": ({}, "messages"),
    "null": ({"messages": None}, "messages"),
    "no list": ({"messages": {"role": "user"}}, "messages"),
    "empty list": ({"messages": []}, "messages"),
    "no object": ({"messages": ["hi"]}, "messages[0]"),
    "no role": ({"messages": [user("hi"), {"content": "x"}]}, "messages[1]"),
    "role no string": ({"messages": [{"role": 1, "content": "x"}]}, "messages[0]"),
    "no user message": ({"messages": [system("x")]}, "messages"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "null content": ({"messages": [user(None), user("hi")]}, "messages[0].content"),
    "empty text": ({"messages": [user("")]}, "messages[0].content"),
    "empty parts": ({"messages": [user([])]}, "messages[0].content"),
    "only empty texts": ({"messages": [user([text(""), text("")])]}, "messages[0].content"),
    "content a number": ({"messages": [user(7)]}, "messages[0].content"),
    "content an object": ({"messages": [user({"type": "text"})]}, "messages[0].content"),
    "part a string": ({"messages": [user(["hi"])]}, "messages[0].content[0]"),
    "part without type": ({"messages": [user([{"text": "hi"}])]}, "messages[0].content[0]"),
    "unknown part": ({"messages": [user([text("hi"), {"type": "smell"}])]}, "messages[0].content[1].type"),
    "unknown system part": ({"messages": [system([{"type": "smell"}]), user("hi")]}, "messages[0].content[0].type"),
    "system a number": ({"messages": [system(7), user("hi")]}, "messages[0].content"),
    "text no string": ({"messages": [user([text(None)])]}, "messages[0].content[0].text"),
    "image no url": ({"messages": [user([image(None)])]}, "messages[0].content[0].image_url"),
    "image a number": (
        {"messages": [user([{"type": "image_url", "image_url": 1}])]},
        "messages[0].content[0].image_url",
    ),
    "detail a number": ({"messages": [user([image(detail=1)])]}, "messages[0].content[0].image_url.detail"),
    "audio no object": ({"messages": [user([{"type": "input_audio"}])]}, "messages[0].content[0].input_audio"),
    "audio no data": (
        {"messages": [user([{"type": "input_audio", "input_audio": {"format": "wav"}}])]},
        "messages[0].content[0].input_audio",
    ),
    "file no object": ({"messages": [user([{"type": "file"}])]}, "messages[0].content[0].file"),
    "file of nothing": ({"messages": [user([{"type": "input_file", "filename": "x"}])]}, "messages[0].content[0]"),
    "file id a list": ({"messages": [user([{"type": "input_file", "file_id": []}])]}, "messages[0].content[0].file_id"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_usable_opening_is_refused(case):
    """A6: no usable user message, an unknown part type or a wrong type in the opening is 400 and names the place."""
    body, param = REFUSED[case]
    with pytest.raises(InvalidRequest) as refused:
        opening_of(body)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_messages", param)


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_an_end_user_must_be_a_string(name):
    """A1: an end user that is no string is 400, so that it is never silently nobody."""
    with pytest.raises(InvalidRequest) as refused:
        opening(user("hi"), **{name: 7})
    assert (refused.value.code, refused.value.param) == (f"invalid_{name}", name)
