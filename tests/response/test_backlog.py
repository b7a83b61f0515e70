"""The backlog keeps events in order, whole and within bounds, and counts every token once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.errors import InvariantError
from sluiceway.response.backlog import NOTHING, START, Backlog, Cursor, Missed, Window
from sluiceway.response.budget import MUCH_BYTES, Budget

MANY = Window(1 << 20, 1 << 20)


def roomy() -> Budget:
    return Budget(max_bytes=1 << 20, max_events=1 << 20)


def with_events(*frames: bytes, keep: Window = MANY, budget: Budget | None = None) -> Backlog:
    """A backlog with these events, each of one token."""
    backlog = Backlog(budget or roomy(), keep)
    for frame in frames:
        backlog.push(frame, 1)
    return backlog


def cursor(backlog: Backlog, event_id: int) -> Cursor:
    found = backlog.cursor_after(event_id)
    assert isinstance(found, Cursor)
    return found


def test_ids_count_events_from_one() -> None:
    """An empty event does not count; its tokens go with the next event."""
    backlog = with_events(b"a", b"")
    assert backlog.end == Cursor(1, 1, 1)
    backlog.push(b"bc", 2)
    assert backlog.end == Cursor(2, 3, 4)
    assert backlog.n_waiting == 4


def test_bytes_are_held_until_they_are_trimmed() -> None:
    backlog = with_events(b"ab", b"c", keep=NOTHING)
    assert backlog.held_bytes == 3
    backlog.trim(cursor(backlog, 1))
    assert backlog.held_bytes == 1


def test_a_single_event_is_not_copied_when_it_is_read() -> None:
    """A single event is the usual case."""
    frame = b"data: 1\n\n" * 2
    assert with_events(frame).read(START, 100)[0] is frame


@pytest.mark.parametrize(
    ("max_bytes", "data", "event_id"),
    [(1, b"ab", 1), (2, b"ab", 1), (4, b"abc", 2), (5, b"abcde", 3), (9, b"abcde", 3)],
)
def test_whole_events_are_read_up_to_a_size(max_bytes: int, data: bytes, event_id: int) -> None:
    """At least one event is read, however large it is."""
    backlog = with_events(b"ab", b"c", b"de")
    read, end = backlog.read(START, max_bytes)
    assert (read, end.event_id, end.n_bytes, end.n_tokens) == (data, event_id, len(data), event_id)


def test_reading_starts_at_any_cursor() -> None:
    """The events before it may have been evicted."""
    backlog = with_events(b"a", b"b", b"c", keep=Window(100, 2))
    backlog.trim(backlog.end)
    assert backlog.read(cursor(backlog, 2), 100) == (b"c", backlog.end)
    assert backlog.read(cursor(backlog, 1), 1) == (b"b", cursor(backlog, 2))


@pytest.mark.parametrize(
    ("event_id", "missed"), [(-1, Missed.NEVER_SENT), (0, Missed.GONE), (4, Missed.NEVER_SENT), (3, Missed.AT_END)]
)
def test_the_reason_is_given_when_there_is_no_cursor(event_id: int, missed: Missed) -> None:
    """The events are evicted, or not sent yet, or no more will come."""
    backlog = with_events(b"a", b"b", keep=Window(100, 2))
    backlog.conclude(b"$")
    backlog.trim(backlog.end)
    assert backlog.cursor_after(event_id) is missed


def test_there_is_a_cursor_at_the_end_while_events_may_come() -> None:
    """A reader that has everything waits there."""
    backlog = with_events(b"a")
    assert backlog.cursor_after(1) == backlog.end


def test_an_event_may_pass_when_nothing_waits() -> None:
    """Its tokens, and those that waited for text, count as delivered. It is never held."""
    budget = roomy()
    backlog = with_events(b"ab", keep=NOTHING, budget=budget)
    backlog.advance(backlog.end, backlog.end)
    backlog.push(b"", 2)
    assert backlog.pass_by(3, 1) == backlog.end == Cursor(2, 5, 4)
    assert (backlog.n_delivered, backlog.n_waiting, backlog.held_bytes, budget.n_bytes) == (4, 0, 0, 0)
    backlog.push(b"c", 1)
    assert backlog.read(cursor(backlog, 2), 100) == (b"c", backlog.end)


def test_no_event_passes_another_one_or_the_end() -> None:
    waiting, ended = with_events(b"a", keep=NOTHING), with_events(keep=NOTHING)
    ended.conclude(b"$")
    ended.advance(ended.end, ended.end)
    for backlog in (waiting, ended):
        with pytest.raises(InvariantError, match="passes others"):
            backlog.pass_by(1, 1)


def test_nothing_comes_after_the_last_event() -> None:
    """Neither another event nor a second last event."""
    backlog = with_events(b"a")
    backlog.conclude(b"$")
    with pytest.raises(InvariantError, match="after the last one"):
        backlog.push(b"b", 1)
    with pytest.raises(InvariantError, match="after the last one"):
        backlog.conclude(b"$")


def test_the_last_event_is_not_empty() -> None:
    """A reader that has everything else would wait for it for ever."""
    backlog = with_events(b"a")
    with pytest.raises(InvariantError, match="empty"):
        backlog.conclude(b"")
    assert not backlog.is_ended


def test_only_events_that_every_reader_has_passed_are_evicted() -> None:
    """A plain response keeps none of these events, and all later ones."""
    budget = roomy()
    backlog = with_events(b"aa", b"b", b"c", keep=NOTHING, budget=budget)
    backlog.trim(cursor(backlog, 1))
    assert (budget.n_bytes, budget.n_events) == (2, 2)
    assert backlog.read(cursor(backlog, 1), 100)[0] == b"bc"


@pytest.mark.parametrize(("keep", "held"), [(Window(100, 2), 2), (Window(2, 100), 1), (Window(100, 100), 3)])
def test_a_window_of_delivered_events_is_kept(keep: Window, held: int) -> None:
    """It has whole events, as many as both bounds allow."""
    budget = roomy()
    backlog = with_events(b"aa", b"bb", b"cc", keep=keep, budget=budget)
    backlog.trim(backlog.end)
    assert budget.n_events == held
    assert backlog.cursor_after(3 - held) != Missed.GONE
    assert held == 3 or backlog.cursor_after(2 - held) is Missed.GONE


@pytest.mark.parametrize("keep", [Window(1 << 20, 16), Window(16, 1 << 20)], ids=["events", "bytes"])
def test_a_full_window_is_cut_by_a_part(keep: Window) -> None:
    """An eighth is evicted together, so that not every event evicts one."""
    budget = roomy()
    backlog = with_events(*[b"x"] * 17, keep=keep, budget=budget)
    backlog.trim(backlog.end)
    assert budget.n_events == 14


def test_nothing_is_kept_when_memory_is_short() -> None:
    """Events that are kept only for a backlog are evicted first."""
    budget = Budget(max_bytes=10, max_events=100)
    backlog = with_events(b"a" * 9, keep=MANY, budget=budget)
    backlog.trim(backlog.end)
    assert budget.n_bytes == 0


@pytest.mark.parametrize(("size", "events", "expected"), [(1, 1, False), (2, 2, True), (4, 1, True)])
def test_it_is_full_when_waiting_events_fill_the_window(size: int, events: int, expected: bool) -> None:
    """Either bound counts. Delivered events do not count."""
    backlog = with_events(*[b"x" * size] * events, keep=Window(4, 2))
    assert backlog.is_full is expected
    backlog.advance(backlog.end, START)
    assert not backlog.is_full


def test_events_that_are_given_up_count_as_undelivered() -> None:
    """They can still be read. Tokens without an event count too, and each token counts once."""
    backlog = with_events(b"a", b"")
    backlog.give_up()
    assert (backlog.n_undelivered, backlog.n_waiting) == (2, 0)
    backlog.advance(backlog.end, START)
    assert (backlog.n_delivered, backlog.n_undelivered) == (0, 2)
    assert backlog.read(START, 9)[0] == b"a"


class ReplayMachine(RuleBasedStateMachine):
    """Two readers of one response, compared with a list that keeps everything."""

    @initialize(keep=st.sampled_from([NOTHING, Window(8, 100), Window(100, 3), MANY]))
    def begin(self, keep: Window) -> None:
        self.budget = Budget(max_bytes=40, max_events=100)
        self.keep = keep
        self.backlog = Backlog(self.budget, keep)
        self.frames: list[bytes] = []
        self.pushed = 0
        self.places = [START, START]
        self.passed = START

    @precondition(lambda self: not self.backlog.is_ended)
    @rule(frame=st.binary(max_size=4), n_tokens=st.integers(0, 3), is_last=st.booleans())
    def push(self, frame: bytes, n_tokens: int, is_last: bool) -> None:
        if is_last and frame:
            self.backlog.conclude(frame)
        else:
            self.backlog.push(frame, n_tokens)
            self.pushed += n_tokens
        self.frames += [frame] if frame else []

    @rule(which=st.integers(0, 1), max_bytes=st.integers(1, 6))
    def read(self, which: int, max_bytes: int) -> None:
        """A reader gets the next events, once and in order."""
        start = self.places[which]
        if start == self.backlog.end:
            return
        data, end = self.backlog.read(start, max_bytes)
        assert data == b"".join(self.frames[start.event_id : end.event_id])
        assert end.event_id == start.event_id + 1 or len(data) <= max_bytes
        self.backlog.advance(end, START)
        self.places[which] = end

    @rule()
    def trim(self) -> None:
        self.passed = min(self.places)
        self.backlog.trim(self.passed)

    @rule(event_id=st.integers(0, 12))
    def return_to(self, event_id: int) -> None:
        """A reader asks again for events that it may have got."""
        match self.backlog.cursor_after(event_id):
            case Cursor() as found:
                self.places[0] = found
                expected = b"".join(self.frames[event_id:])
                assert not expected or self.backlog.read(found, 1 << 20)[0] == expected
            case Missed.GONE:
                assert event_id < self.passed.event_id
            case Missed.AT_END:
                assert self.backlog.is_ended and event_id == len(self.frames)
            case Missed.NEVER_SENT:
                assert event_id > len(self.frames)

    @precondition(lambda self: self.backlog.is_ended)
    @rule()
    def discard(self) -> None:
        self.backlog.discard()
        self.places = [self.backlog.end] * 2
        self.passed = self.backlog.end
        assert (self.budget.n_bytes, self.budget.n_events, self.backlog.n_waiting) == (0, 0, 0)

    @invariant()
    def every_token_counts_once(self) -> None:
        assert self.pushed == self.backlog.n_delivered + self.backlog.n_undelivered + self.backlog.n_waiting

    @invariant()
    def what_is_held_is_known(self) -> None:
        held = self.frames[len(self.frames) - self.budget.n_events :] if self.budget.n_events else []
        assert self.budget.n_bytes == sum(map(len, held))


TestReplay = ReplayMachine.TestCase
TestReplay.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


def test_the_status_line_is_removed_when_the_response_ends() -> None:
    """It is not an event: it has no id, and no held bytes."""
    budget = roomy()
    backlog = with_events(b"a", budget=budget)
    backlog.status_line = b": soon\n\n"
    assert (backlog.end.event_id, budget.n_bytes, budget.n_events) == (1, 1, 1)
    backlog.conclude(b"$")
    assert backlog.status_line == b""


def test_a_gathered_answer_is_held_until_its_last_events_come() -> None:
    """It is no event yet and cannot be read. Its tokens are delivered with the last event."""
    budget = roomy()
    backlog = Backlog(budget)
    backlog.gather(70, 3)
    backlog.gather(30, 1)
    assert (budget.n_bytes, budget.n_events, backlog.gathered_bytes, backlog.n_waiting) == (100, 0, 100, 4)
    assert backlog.end == START
    backlog.conclude(b"c" * 40, [b"a" * 40, b"b" * 40])
    assert (budget.n_bytes, budget.n_events, backlog.gathered_bytes) == (120, 3, 0)
    backlog.advance(cursor(backlog, 2), START)
    assert (backlog.n_delivered, backlog.n_waiting) == (0, 4)
    backlog.advance(backlog.end, START)
    assert (backlog.n_delivered, backlog.n_waiting) == (4, 0)


def test_gathered_bytes_are_released_when_everything_is_discarded() -> None:
    """Their tokens count as undelivered."""
    budget = roomy()
    backlog = Backlog(budget)
    backlog.gather(70, 3)
    backlog.discard()
    backlog.discard()
    assert (budget.n_bytes, backlog.gathered_bytes, backlog.n_undelivered) == (0, 0, 3)


def test_readers_of_large_events_share_them() -> None:
    """Each reader gets the same object and no copy, from any cursor."""
    frames = [bytes([letter]) * 100 for letter in b"abcd"]
    backlog = with_events(*frames)
    for _ in range(2):
        reached = START
        for number, frame in enumerate(frames, 1):
            data, reached = backlog.read(reached, 50)
            assert data is frame and reached == Cursor(number, 100 * number, number)


def test_large_memory_is_freed_later() -> None:
    """It counts as released immediately. Whole answers may be large."""
    budget = Budget(max_bytes=1 << 30, max_events=100)
    backlog = Backlog(budget)
    for _ in range(3):
        backlog.push(bytes(MUCH_BYTES), 1)
    _, place = backlog.read(START, 1)
    backlog.trim(place)
    assert (budget.n_events, budget.has_memory_to_free) == (2, False)
    backlog.discard()
    assert (budget.n_bytes, budget.has_memory_to_free) == (0, True)
    assert budget.free_some(1 << 30) == 2 * MUCH_BYTES


def test_a_plain_response_holds_nothing_that_its_reader_has_got() -> None:
    """Its tokens count as delivered. A second call for the same cursor changes nothing."""
    budget = Budget(max_bytes=1 << 20, max_events=1 << 10)
    backlog = Backlog(budget)
    backlog.push(b"x", 1)
    for _ in range(2):
        backlog.advance(backlog.end, backlog.end)
        assert (budget.n_bytes, budget.n_events) == (0, 0)
        assert (backlog.n_delivered, backlog.n_undelivered, backlog.held_bytes) == (1, 0, 0)
    backlog.push(b"y", 1)
    assert backlog.read(cursor(backlog, 1), 10) == (b"y", backlog.end)
