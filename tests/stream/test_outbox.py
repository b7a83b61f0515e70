"""What waits for a reader is measured, kept in order, and taken whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.stream.outbox import Batch, Outbox


def test_nothing_is_there_when_nothing_was_pushed() -> None:
    """An empty outbox gives an empty batch."""
    outbox = Outbox()
    assert (outbox.n_bytes, outbox.n_events, outbox.n_tokens) == (0, 0, 0)
    assert outbox.take() == Batch(b"", 0, 0)


def test_a_single_frame_is_not_copied_when_it_is_taken() -> None:
    """The common case, one event per step, costs no join."""
    outbox, frame = Outbox(), b"data: 1\n\n" * 2
    outbox.push(frame, 1)
    assert outbox.take().data is frame


def test_an_empty_frame_adds_only_its_tokens_when_it_is_pushed() -> None:
    """Held-back text makes no event, but its tokens go out with what follows."""
    outbox = Outbox()
    outbox.push(b"", 2)
    assert (outbox.n_events, outbox.n_tokens) == (0, 2)


@given(st.lists(st.one_of(st.tuples(st.binary(max_size=9), st.integers(0, 3)), st.none()), max_size=30))
def test_every_byte_and_token_comes_out_once_and_in_order(actions: list[tuple[bytes, int] | None]) -> None:
    """Whatever the mixture of pushes and takes; the measures agree with what waits."""
    outbox, waiting, tokens = Outbox(), list[bytes](), 0
    for action in actions:
        if action is None:
            assert outbox.take() == Batch(b"".join(waiting), len(waiting), tokens)
            waiting, tokens = [], 0
        else:
            outbox.push(*action)
            waiting += [action[0]] if action[0] else []
            tokens += action[1]
        assert outbox.n_bytes == sum(map(len, waiting))
        assert outbox.n_events == len(waiting)
        assert outbox.n_tokens == tokens
