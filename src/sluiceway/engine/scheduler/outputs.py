"""What the scheduler has to say, gathered until the engine drains it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluiceway.errors import Refusal
from sluiceway.types import FinishReason, Held, Logprobs, Rid, TokenId


@dataclass(frozen=True, slots=True)
class Start:
    """A sequence was admitted to the queue; exactly one `End` will follow."""

    rid: Rid
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """The one terminal of a sequence."""

    rid: Rid
    reason: FinishReason
    held: Held
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A whole group was refused; nothing of it is held and nothing more is said of it."""

    rids: tuple[Rid, ...]
    refusal: Refusal


@dataclass(slots=True)
class Outputs:
    """To be read in this order: starts and rejections, tokens (`rids[i]` got `token_ids[i]`), ends.

    `logprobs` has those of token i under i, for tokens that are told with theirs.
    """

    starts: list[Start] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    rids: list[Rid] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.starts or self.rejections or self.rids or self.ends)

    def add_token(self, rid: Rid, token_id: TokenId, logprobs: Logprobs | None = None) -> None:
        if logprobs is not None:
            self.logprobs[len(self.rids)] = logprobs
        self.rids.append(rid)
        self.token_ids.append(token_id)
