"""The opening of a chat: what makes two header-less requests the same conversation."""

from collections.abc import Callable
from itertools import groupby

from gateway_adapter.invalid import InvalidRequest

# What one content part counts as: its kind, and a text or framed fields.
_Piece = tuple[bytes, bytes]
_TEXT = b"text"


def opening_of(body: dict[str, object]) -> tuple[bytes, ...]:
    """The parts of the opening: the end user, each system text before the first user message, that message's content.

    Each part begins with its kind, so equal bytes of different kinds stay apart; whoever joins the parts frames each.
    Raises InvalidRequest when there is no usable user message, or when the opening holds something unknown.
    """
    parts = [b"end-user:" + _end_user(body)]
    for index, message in enumerate(_messages(body)):
        role, where = message["role"], f"messages[{index}].content"
        if role in {"system", "developer"}:
            parts += [b"system:" + part for part in _content(message.get("content"), where)]
        elif role == "user":
            content = _content(message.get("content"), where)
            if not content:
                raise _invalid("The first user message has no content.", where)
            return (*parts, *(b"user:" + part for part in content))
    raise _invalid("There is no user message.", "messages")


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_messages")


def _end_user(body: dict[str, object]) -> bytes:
    """The end user the client names, under its older or newer name; sent under both, both count."""
    named: list[str] = []
    for name in ("user", "safety_identifier"):
        value = body.get(name)
        if not isinstance(value, str | None):
            raise InvalidRequest(f"{name} must be a string.", name, f"invalid_{name}")
        if value:
            named.append(value)
    return _framed(*named)


def _messages(body: dict[str, object]) -> list[dict[str, object]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages must be a list with at least one message.", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid("A message must be an object with a role.", f"messages[{index}]")
    return messages


def _content(content: object, where: str) -> list[bytes]:
    """A message's content in one form: neighbouring texts are one, a string is one text, an empty text is nothing."""
    if content is None:
        return []
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _invalid("A message's content must be a string or a list of parts.", where)
    pieces = [_piece(part, f"{where}[{index}]") for index, part in enumerate(content)]
    parts: list[bytes] = []
    for kind, group in groupby(pieces, key=lambda piece: piece[0]):
        values = [value for _, value in group]
        if kind == _TEXT:
            values = [text for text in [b"".join(values)] if text]
        parts += [kind + b":" + value for value in values]
    return parts


def _piece(part: object, where: str) -> _Piece:
    readers: dict[object, Callable[[dict[str, object], str], _Piece]] = {
        "text": _text,
        "input_text": _text,
        "image_url": _image,
        "input_image": _image,
        "input_audio": _audio,
        "file": _file,
        "input_file": _file,
    }
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _invalid("A content part must be an object with a type.", where)
    reader = readers.get(part["type"])
    if reader is None:
        raise _invalid("The type of this content part is not known.", f"{where}.type")
    return reader(part, where)


def _text(part: dict[str, object], where: str) -> _Piece:
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid("A text part must have a text.", f"{where}.text")
    return _TEXT, _bytes(text)


def _image(part: dict[str, object], where: str) -> _Piece:
    image = part.get("image_url")
    source: dict[str, object] = {"url": image}
    if not isinstance(image, str | None):
        source = _object(part, "image_url", where)
    url = _string(source, "url", f"{where}.image_url")
    file_id = _string(part, "file_id", where)
    if not (url or file_id):
        raise _invalid("An image part must name an image.", f"{where}.image_url")
    detail = _string(source, "detail", f"{where}.image_url") or _string(part, "detail", where) or "auto"
    return b"image", _framed(url, file_id, detail)


def _audio(part: dict[str, object], where: str) -> _Piece:
    audio, where = _object(part, "input_audio", where), f"{where}.input_audio"
    data, form = _string(audio, "data", where), _string(audio, "format", where)
    if not (data and form):
        raise _invalid("An audio part must have data and a format.", where)
    return b"audio", _framed(data, form)


def _file(part: dict[str, object], where: str) -> _Piece:
    source = part
    if part["type"] == "file":
        source, where = _object(part, "file", where), f"{where}.file"
    file_id, data, url = (_string(source, name, where) for name in ("file_id", "file_data", "file_url"))
    if not (file_id or data or url):
        raise _invalid("A file part must name a file or hold its data.", where)
    return b"file", _framed(file_id, data, url, _string(source, "filename", where))


def _object(fields: dict[str, object], name: str, where: str) -> dict[str, object]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise _invalid(f"{name} must be an object.", f"{where}.{name}")
    return value


def _string(fields: dict[str, object], name: str, where: str) -> str:
    """A string that may be left out, which is the same as empty."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise _invalid(f"{name} must be a string.", f"{where}.{name}")
    return value or ""


def _framed(*values: str) -> bytes:
    """Values put together so that no two lists of them look alike: each after its length."""
    return b"".join(b"%d:%b" % (len(raw), raw) for raw in map(_bytes, values))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # half an emoji is a text like any other
