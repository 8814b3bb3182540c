"""A server's clock, as far as its replies tell."""

from time import monotonic


class StoreClock:
    """An estimate of a server's clock, from the times that its replies carry; never later than the real one."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    @property
    def known(self) -> bool:
        """Whether a reply has told the time yet."""
        return self._offset_ms is not None

    def observe(self, store_ms: int, received: float | None = None) -> None:
        """Takes over a reply's time. The reply was on its way for a while, so the store is at least this far."""
        self._offset_ms = store_ms - (received if received is not None else monotonic()) * 1000

    def at(self, moment: float) -> int:
        """The store's clock in ms at a moment of `time.monotonic()`."""
        if self._offset_ms is None:
            raise RuntimeError("the store's clock is not known yet")
        return int(moment * 1000 + self._offset_ms)

    def now(self) -> int:
        """The store's clock now, in ms."""
        return self.at(monotonic())
