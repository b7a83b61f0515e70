"""Bounds the bytes that the kernel has accepted for a connection and not sent yet, so that a stopped reader shows.

`TCP_NOTSENT_LOWAT` bounds them where bytes begin a new segment. But bytes that fit into a waiting segment are added to
it without a check, and such a segment takes half of the reader's window: 32 KiB of events of two hundred bytes. So the
kernel is asked now and then (`SIOCOUTQNSD`). Once it holds too much, nothing more is given to it until it has sent
some. It gives no notice of that, so it is asked again soon, and then less and less often.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
from collections.abc import Callable

_SIOCOUTQNSD = 0x894B
"""Like SIOCOUTQ in https://man7.org/linux/man-pages/man7/tcp.7.html, without the bytes that were sent already."""

_FIRST_PAUSE_S = 0.002
_LAST_PAUSE_S = 0.25


class KernelQueue:
    """Watches one connection. It calls `when_sent` when the kernel was too full and has sent enough."""

    __slots__ = ("_max_bytes", "_n_unasked", "_pause_s", "_transport", "_when_sent", "is_full")

    def __init__(self, transport: asyncio.Transport, max_bytes: int, when_sent: Callable[[], None]) -> None:
        """`max_bytes` 0: no bound, as on systems that cannot be asked."""
        self._transport = transport
        self._max_bytes = max_bytes if sys.platform == "linux" else 0
        self._when_sent = when_sent
        self._n_unasked = 0
        self._pause_s = _FIRST_PAUSE_S
        self.is_full = False

    @property
    def unsent_bytes(self) -> int:
        """Ask the kernel how many bytes it has not sent."""
        if not self._max_bytes or self._transport.is_closing():
            return 0
        answer = bytearray(4)
        try:
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), _SIOCOUTQNSD, answer)
        except OSError:  # not every Linux has this request; gVisor has not
            self._max_bytes = 0
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def wrote(self, n_bytes: int) -> None:
        """Count bytes that were given to the kernel. It is asked once for many of them: that takes a system call."""
        self._n_unasked += n_bytes
        if self._n_unasked * 2 >= self._max_bytes > 0 and not self.is_full:
            self._n_unasked = 0
            self._pause_s = _FIRST_PAUSE_S
            self._look()

    def _look(self) -> None:
        self.is_full = self.unsent_bytes > self._max_bytes
        if self.is_full:
            asyncio.get_running_loop().call_later(self._pause_s, self._look_again)
            self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)

    def _look_again(self) -> None:
        self._look()
        if not self.is_full:
            self._when_sent()
