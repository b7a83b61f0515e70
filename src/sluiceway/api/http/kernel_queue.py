"""What the kernel has accepted of a connection's bytes and not sent yet: bounded, as a reader that stopped must show.

`TCP_NOTSENT_LOWAT` bounds it where bytes begin a new segment. What finds room in one that waits already is added to it
without a question, and such a segment takes half of the reader's window: 32 KiB of events of two hundred bytes. So the
kernel is asked now and then (`SIOCOUTQNSD`), and once it holds too much nothing more is given to it until it has sent
some. It does not tell when it has; it is asked again soon, and ever less often.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
from collections.abc import Callable

_SIOCOUTQNSD = 0x894B
"""https://man7.org/linux/man-pages/man7/tcp.7.html has its elder, SIOCOUTQ, which counts what is under way too."""

_FIRST_PAUSE_S = 0.002
_LAST_PAUSE_S = 0.25


class KernelQueue:
    """Of one connection. `when_sent` is called when it has been full and is not any more."""

    __slots__ = ("_max_bytes", "_n_unasked", "_pause_s", "_transport", "_when_sent", "is_full")

    def __init__(self, transport: asyncio.Transport, max_bytes: int, when_sent: Callable[[], None]) -> None:
        """`max_bytes` 0: as much as the kernel likes, as on systems that cannot be asked or that refuse to say."""
        self._transport = transport
        self._max_bytes = max_bytes if sys.platform == "linux" else 0
        self._when_sent = when_sent
        self._n_unasked = 0
        self._pause_s = _FIRST_PAUSE_S
        self.is_full = False

    @property
    def unsent_bytes(self) -> int:
        """Asked now."""
        if not self._max_bytes or self._transport.is_closing():
            return 0
        answer = bytearray(4)
        try:
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), _SIOCOUTQNSD, answer)
        except OSError:  # what runs here passes for Linux and does not know the question, as gVisor does not
            self._max_bytes = 0
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def wrote(self, n_bytes: int) -> None:
        """So many bytes more were given to it. It is asked once for several events, since that takes a system call."""
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
