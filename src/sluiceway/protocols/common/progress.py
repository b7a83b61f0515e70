"""Reports of the progress of a request before its first token: a comment, or an event of the native protocol."""

from __future__ import annotations

from sluiceway.sse.encoder import encode_json
from sluiceway.types import Progress


def progress_comment(progress: Progress) -> str:
    """The text of a comment: programs ignore it, and people can read it."""
    if progress.position:
        return f"queued position={progress.position}"
    return f"prefill computed={progress.computed_tokens} of={progress.total_tokens}"


def progress_event(progress: Progress) -> bytes:
    """A whole event, `queued` or `prefill`. It has no id, since it cannot be read again."""
    if progress.position:
        name, fields = b"queued", {"position": progress.position}
    else:
        name, fields = b"prefill", {"computed": progress.computed_tokens, "total": progress.total_tokens}
    return b"event: %b\ndata: %b\n\n" % (name, encode_json(fields))
