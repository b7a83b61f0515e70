"""On what terms a request is served: what the server is set to, and what the request wishes otherwise."""

from __future__ import annotations

import msgspec

from sluiceway.config import StreamsConfig
from sluiceway.protocols.common.generation import Generation
from sluiceway.protocols.common.wishes import Wishes
from sluiceway.response.override import policy_from_header, policy_from_json
from sluiceway.response.policy import POLICIES, Policy, PolicyName
from sluiceway.response.terms import Retention, Terms


def policy_of(streams: StreamsConfig) -> Policy:
    """The server's own. Raises `ConfigError` for marks or times that are wrong for it."""
    given = {field: getattr(streams, field) for field in Policy.__struct_fields__ if field != "name"}
    changed = {field: value for field, value in given.items() if value is not None}
    return msgspec.structs.replace(POLICIES[PolicyName(streams.slow_client)], **changed)


class Offer:
    """What the server is set to. Raises `ConfigError` where that contradicts itself."""

    def __init__(self, streams: StreamsConfig) -> None:
        self._streams = streams
        self.policy = policy_of(streams)
        self._kept = Retention(
            max_bytes=streams.replay_bytes,
            max_events=streams.replay_events,
            ahead_tokens=streams.detach_ahead_tokens,
            ttl_s=streams.replay_ttl_s,
        )

    def terms_for(self, generation: Generation, slow_client: str | None, *, has_key: bool) -> Terms:
        """`slow_client` is the header for it, which counts where the body says nothing; with a key an answer is kept.

        Raises `RequestError`.
        """
        wishes = generation.wishes
        policy = policy_from_json(wishes.slow_client, self.policy)
        if wishes.slow_client is None and slow_client is not None:
            policy = policy_from_header(slow_client, self.policy)
        keep_alive_s = self._streams.sse_keep_alive_s if wishes.keep_alive_s is None else wishes.keep_alive_s
        return Terms(
            policy=policy,
            keep_alive_s=keep_alive_s if generation.stream else 0.0,
            retention=self._retention(wishes) if wishes.resumable or has_key else None,
        )

    def _retention(self, wishes: Wishes) -> Retention:
        if wishes.on_disconnect == "cancel":
            return self._kept
        grace_s = self._streams.detach_grace_s if wishes.grace_s is None else wishes.grace_s
        return msgspec.structs.replace(self._kept, grace_s=grace_s)
