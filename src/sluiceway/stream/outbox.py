"""What one response has ready for its reader and has not yet handed to the transport; measured in bytes and events."""

from __future__ import annotations

import msgspec


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Whole frames, joined for one write, and what they carry."""

    data: bytes
    n_events: int
    n_tokens: int


class Outbox:
    """Frames in order. Its bound is a matter of the session's policy: this only measures.

    Frames are joined when they are taken, so a reader that lags gets few large writes instead of many small ones,
    and no frame is ever split over two.
    """

    __slots__ = ("_frames", "n_bytes", "n_tokens")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.n_bytes = 0
        self.n_tokens = 0
        """Tokens whose text is in the frames that wait."""

    @property
    def n_events(self) -> int:
        """Frames that wait."""
        return len(self._frames)

    def push(self, frame: bytes, n_tokens: int = 0) -> None:
        """Add a frame. An empty one (text is held back) adds its tokens only."""
        self.n_tokens += n_tokens
        if frame:
            self._frames.append(frame)
            self.n_bytes += len(frame)

    def take(self) -> Batch:
        """Everything that waits; afterwards nothing does."""
        frames = self._frames
        batch = Batch(frames[0] if len(frames) == 1 else b"".join(frames), len(frames), self.n_tokens)
        self._frames = []
        self.n_bytes = self.n_tokens = 0
        return batch
