"""How far a request is before its first token, in words for its reader: a comment, or an event of our own protocol."""

from __future__ import annotations

from sluiceway.sse.encoder import encode_json
from sluiceway.types import Progress


def progress_comment(progress: Progress) -> str:
    """The text of a comment: readers of any protocol pass over it, and people read it."""
    if progress.position:
        return f"queued position={progress.position}"
    return f"prefill computed={progress.computed_tokens} of={progress.total_tokens}"


def progress_event(progress: Progress) -> bytes:
    """A whole block: `queued` or `prefill`. It has no id, since it is no part of what can be read again."""
    if progress.position:
        name, fields = b"queued", {"position": progress.position}
    else:
        name, fields = b"prefill", {"computed": progress.computed_tokens, "total": progress.total_tokens}
    return b"event: %b\ndata: %b\n\n" % (name, encode_json(fields))
