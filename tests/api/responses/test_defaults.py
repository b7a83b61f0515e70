"""The terms of a response: the settings of the server, and the options of the request."""

from __future__ import annotations

import msgspec
import pytest

from sluiceway.api.responses.defaults import StreamDefaults, policy_of
from sluiceway.config import StreamsConfig
from sluiceway.errors import ConfigError, RequestError
from sluiceway.protocols.openai.requests import parse_completion
from sluiceway.response.policy import DEFAULT, POLICIES, PolicyName
from sluiceway.response.terms import StreamTerms
from support.asgi_driver import completion

SERVER = StreamsConfig(slow_client="drop", drop_after_s=7.0, replay_ttl_s=11.0, detach_grace_s=13.0)


def terms(*, stream: bool = True, header: str | None = None, has_key: bool = False, **wishes: object) -> StreamTerms:
    generation = parse_completion(completion(stream=stream, sluiceway=wishes))
    return StreamDefaults(SERVER).terms_for(generation, header, has_key=has_key)


def test_the_settings_of_the_server_change_its_policy() -> None:
    """Marks and times that are not set have the defaults of the policy."""
    assert policy_of(StreamsConfig()) == DEFAULT
    assert policy_of(SERVER) == msgspec.structs.replace(POLICIES[PolicyName.DROP], drop_after_s=7.0)
    with pytest.raises(ConfigError, match="park_after_s"):
        policy_of(StreamsConfig(slow_client="drop", park_after_s=1.0))


def test_a_request_without_options_has_the_terms_of_the_server() -> None:
    """Nothing is kept, and comments come as the server is set."""
    plain = terms()
    assert (plain.policy, plain.keep_alive_s, plain.retention) == (policy_of(SERVER), 15.0, None)


def test_the_body_counts_before_the_header() -> None:
    """Both may name a policy."""
    assert terms(header="pause").policy.name is PolicyName.PAUSE
    assert terms(header="pause", slow_client="unbounded").policy.name is PolicyName.UNBOUNDED
    with pytest.raises(RequestError):
        terms(header="naive")


def test_only_streams_have_comments() -> None:
    """A comment would break the JSON of a whole answer."""
    assert terms(keep_alive_s=3).keep_alive_s == 3.0
    assert terms(stream=False).keep_alive_s == 0.0


def test_a_resumable_response_is_kept() -> None:
    """It goes on without a reader only if the request asks for that."""
    kept = terms(resumable=True).retention
    assert kept is not None and (kept.grace_s, kept.ttl_s) == (0.0, 11.0)
    detached = terms(resumable=True, on_disconnect="detach").retention
    assert detached is not None and detached.grace_s == 13.0
    patient = terms(resumable=True, on_disconnect="detach", grace_s=99).retention
    assert patient is not None and patient.grace_s == 99.0


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_with_a_key_is_kept(stream: bool) -> None:
    """Its request may be sent again."""
    assert terms(stream=stream, has_key=True).retention is not None
