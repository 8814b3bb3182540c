"""The refusal of a request that is wrong in itself."""


class InvalidRequest(Exception):
    """The request cannot be served as it is: 400 with an `invalid_...` code, raised before anything was written.

    `message` is for the caller to read; `param` names the place in the request, None when it is the request as a whole.
    """

    def __init__(self, message: str, param: str | None, code: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
