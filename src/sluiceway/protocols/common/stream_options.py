"""The options that a request may set for its stream: the fields, and the value that they become.

Every protocol has them, in an object or among its own fields. The settings of the server matter too, so the terms of
the response are decided where both are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from sluiceway.errors import invalid
from sluiceway.ranges import WAIT_S

STREAM_ID_HEADER = "x-stream-id"
"""In a request: the id that the client chooses for its stream. In a response: the id of the stream."""

MAX_THRESHOLDS = 32
"""Most keys of `slow_client`: more than there are thresholds, and few enough to name the unknown ones."""

_ID_FORM = "1 to 128 letters, digits and `-`, `_`, `.` or `~`, the first a letter or a digit"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")

OnDisconnect = Literal["cancel", "detach"]
ProgressForm = Literal["comments", "events"]
"""The form of reports before the first token: comments, which readers ignore, or events with a name."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream; None: the setting of the server. `response.override` reads `slow_client`."""

    slow_client: str | Mapping[str, object] | None = None
    resumable: bool = False
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float | None = None
    keep_alive_s: float | None = None
    stream_id: str | None = None
    progress: ProgressForm | None = None
    """None: no reports."""


def checked_stream_id(value: str) -> str:
    """The id that a client gave in a header. Raises `RequestError`."""
    if not _ID.fullmatch(value):
        raise invalid(f"`{STREAM_ID_HEADER}` must be {_ID_FORM}.", STREAM_ID_HEADER)
    return value


def _stream_id(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _ID.fullmatch(value)):
        return value
    raise PydanticCustomError("stream_id", _ID_FORM)


def _slow_client(value: object) -> str | Mapping[str, object] | None:
    if isinstance(value, dict) and len(value) > MAX_THRESHOLDS:
        raise PydanticCustomError("slow_client", f"an object of at most {MAX_THRESHOLDS} keys")
    if value is None or isinstance(value, str | dict):
        return value
    raise PydanticCustomError("slow_client", "the name of a policy or an object")


_Wait = Annotated[float, Field(ge=WAIT_S.low, le=WAIT_S.high)]


class StreamOptionFields(BaseModel):
    """The fields. Unknown ones are refused, since an option that is ignored would be missed."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    slow_client: Annotated[str | Mapping[str, object] | None, PlainValidator(_slow_client)] = None
    resumable: bool | None = None
    on_disconnect: OnDisconnect | None = None
    grace_s: _Wait | None = None
    keep_alive_s: _Wait | None = None
    stream_id: Annotated[str | None, PlainValidator(_stream_id)] = None
    progress: ProgressForm | None = None

    @property
    def options(self) -> StreamOptions:
        """The fields, lowered."""
        return StreamOptions(
            slow_client=self.slow_client,
            resumable=bool(self.resumable),
            on_disconnect=self.on_disconnect or "cancel",
            grace_s=self.grace_s,
            keep_alive_s=self.keep_alive_s,
            stream_id=self.stream_id,
            progress=self.progress,
        )

    def check_options(self, path: str, *, is_streamed: bool) -> None:
        """Check the fields together. `path` is the object that has them, with a dot. Raises `RequestError`."""
        if not is_streamed:
            of_streams = {
                "resumable": self.resumable,
                "keep_alive_s": self.keep_alive_s is not None,
                "progress": self.progress is not None,
            }
            for field, is_given in of_streams.items():
                if is_given:
                    raise invalid(f"`{path}{field}` may only be given for a streamed answer.", path + field)
        if self.on_disconnect == "detach" and not self.resumable:
            param = f"{path}on_disconnect"
            raise invalid(f"`{param}` may only be `detach` with `{path}resumable: true`.", param)
        if self.grace_s is not None and self.on_disconnect != "detach":
            param = f"{path}grace_s"
            raise invalid(f'`{param}` may only be given with `{path}on_disconnect: "detach"`.', param)
