"""The terms of a response: what the server is set to, changed by the options of the request."""

from __future__ import annotations

import msgspec

from sluiceway.config import StreamsConfig
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.common.stream_options import StreamOptions
from sluiceway.response.override import policy_from_header, policy_from_json
from sluiceway.response.policy import POLICIES, Policy, PolicyName
from sluiceway.response.terms import Retention, StreamTerms


def policy_of(streams: StreamsConfig) -> Policy:
    """The policy of the server. Raises `ConfigError` for marks or times that are wrong for it."""
    given = {field: getattr(streams, field) for field in Policy.__struct_fields__ if field != "name"}
    changed = {field: value for field, value in given.items() if value is not None}
    return msgspec.structs.replace(POLICIES[PolicyName(streams.slow_client)], **changed)


class StreamDefaults:
    """Makes the terms of each response. Raises `ConfigError` for settings that contradict each other."""

    def __init__(self, streams: StreamsConfig) -> None:
        self._streams = streams
        self.policy = policy_of(streams)
        self._retention = Retention(
            max_bytes=streams.replay_bytes,
            max_events=streams.replay_events,
            ahead_tokens=streams.detach_ahead_tokens,
            ttl_s=streams.replay_ttl_s,
        )
        self.plain = StreamTerms(policy=self.policy, keep_alive_s=streams.sse_keep_alive_s)
        """The terms of a stream whose request chooses nothing."""

    def terms_for(self, generation: GenerationRequest, slow_client: str | None, *, has_key: bool) -> StreamTerms:
        """The terms of one request. A response with an idempotency key is kept.

        `slow_client` is the header for it, which counts where the body has no such field. Raises `RequestError`.
        """
        options = generation.stream_options
        policy = policy_from_json(options.slow_client, self.policy)
        if options.slow_client is None and slow_client is not None:
            policy = policy_from_header(slow_client, self.policy)
        keep_alive_s = self._streams.sse_keep_alive_s if options.keep_alive_s is None else options.keep_alive_s
        return StreamTerms(
            policy=policy,
            keep_alive_s=keep_alive_s if generation.stream else 0.0,
            retention=self._retention_for(options) if options.resumable or has_key else None,
        )

    def _retention_for(self, options: StreamOptions) -> Retention:
        if options.on_disconnect == "cancel":
            return self._retention
        grace_s = self._streams.detach_grace_s if options.grace_s is None else options.grace_s
        return msgspec.structs.replace(self._retention, grace_s=grace_s)
