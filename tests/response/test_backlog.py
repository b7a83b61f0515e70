"""Events in order, whole, within bounds; and every token counted once."""

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
    """One token an event."""
    replay = Backlog(budget or roomy(), keep)
    for frame in frames:
        replay.push(frame, 1)
    return replay


def cursor(replay: Backlog, event_id: int) -> Cursor:
    found = replay.cursor_after(event_id)
    assert isinstance(found, Cursor)
    return found


def test_ids_count_events_from_one() -> None:
    """An event of no bytes is none; its tokens go with the next one."""
    replay = with_events(b"a", b"")
    assert replay.end == Cursor(1, 1, 1)
    replay.push(b"bc", 2)
    assert replay.end == Cursor(2, 3, 4)
    assert replay.n_waiting == 4


def test_bytes_are_held_until_they_are_trimmed() -> None:
    replay = with_events(b"ab", b"c", keep=NOTHING)
    assert replay.held_bytes == 3
    replay.trim(cursor(replay, 1))
    assert replay.held_bytes == 1


def test_a_single_event_is_not_copied_when_it_is_read() -> None:
    """The common case, one event per step, costs no join."""
    frame = b"data: 1\n\n" * 2
    assert with_events(frame).read(START, 100)[0] is frame


@pytest.mark.parametrize(
    ("max_bytes", "data", "event_id"),
    [(1, b"ab", 1), (2, b"ab", 1), (4, b"abc", 2), (5, b"abcde", 3), (9, b"abcde", 3)],
)
def test_whole_events_are_read_up_to_so_many_bytes(max_bytes: int, data: bytes, event_id: int) -> None:
    """At least one, however large it is."""
    replay = with_events(b"ab", b"c", b"de")
    read, end = replay.read(START, max_bytes)
    assert (read, end.event_id, end.n_bytes, end.n_tokens) == (data, event_id, len(data), event_id)


def test_reading_goes_on_from_a_place_in_the_middle() -> None:
    """Also when what was before it is gone."""
    replay = with_events(b"a", b"b", b"c", keep=Window(100, 2))
    replay.trim(replay.end)
    assert replay.read(cursor(replay, 2), 100) == (b"c", replay.end)
    assert replay.read(cursor(replay, 1), 1) == (b"b", cursor(replay, 2))


@pytest.mark.parametrize(
    ("event_id", "missed"), [(-1, Missed.NEVER_SENT), (0, Missed.GONE), (4, Missed.NEVER_SENT), (3, Missed.AT_END)]
)
def test_a_place_that_is_not_there_is_explained(event_id: int, missed: Missed) -> None:
    """Fallen out, not sent yet, or nothing more to come."""
    replay = with_events(b"a", b"b", keep=Window(100, 2))
    replay.conclude(b"$")
    replay.trim(replay.end)
    assert replay.cursor_after(event_id) is missed


def test_the_end_is_a_place_while_more_may_come() -> None:
    """A reader that has everything waits there."""
    replay = with_events(b"a")
    assert replay.cursor_after(1) == replay.end


def test_an_event_may_pass_when_nothing_waits() -> None:
    """It is delivered, with the tokens that waited for text, and is never held."""
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
    """Neither an event nor a second last one."""
    replay = with_events(b"a")
    replay.conclude(b"$")
    with pytest.raises(InvariantError, match="after the last one"):
        replay.push(b"b", 1)
    with pytest.raises(InvariantError, match="after the last one"):
        replay.conclude(b"$")


def test_the_last_event_is_not_empty() -> None:
    """A reader that has everything already would wait for it for ever."""
    replay = with_events(b"a")
    with pytest.raises(InvariantError, match="empty"):
        replay.conclude(b"")
    assert not replay.is_ended


def test_only_events_that_every_reader_has_passed_are_evicted() -> None:
    """A plain response keeps nothing of it, and all of the rest."""
    budget = roomy()
    replay = with_events(b"aa", b"b", b"c", keep=NOTHING, budget=budget)
    replay.trim(cursor(replay, 1))
    assert (budget.n_bytes, budget.n_events) == (2, 2)
    assert replay.read(cursor(replay, 1), 100)[0] == b"bc"


@pytest.mark.parametrize(("keep", "held"), [(Window(100, 2), 2), (Window(2, 100), 1), (Window(100, 100), 3)])
def test_a_window_is_kept_of_what_was_passed(keep: Window, held: int) -> None:
    """As many events as fit by both bounds, and whole ones."""
    budget = roomy()
    replay = with_events(b"aa", b"bb", b"cc", keep=keep, budget=budget)
    replay.trim(replay.end)
    assert budget.n_events == held
    assert replay.cursor_after(3 - held) != Missed.GONE
    assert held == 3 or replay.cursor_after(2 - held) is Missed.GONE


@pytest.mark.parametrize("keep", [Window(1 << 20, 16), Window(16, 1 << 20)], ids=["events", "bytes"])
def test_a_full_window_gets_room_for_a_while(keep: Window) -> None:
    """An eighth of it is evicted together, so that not every event evicts one."""
    budget = roomy()
    backlog = with_events(*[b"x"] * 17, keep=keep, budget=budget)
    backlog.trim(backlog.end)
    assert budget.n_events == 14


def test_nothing_is_kept_when_memory_is_short() -> None:
    """What is only there for a replay goes first."""
    budget = Budget(max_bytes=10, max_events=100)
    replay = with_events(b"a" * 9, keep=MANY, budget=budget)
    replay.trim(replay.end)
    assert budget.n_bytes == 0


@pytest.mark.parametrize(("size", "events", "expected"), [(1, 1, False), (2, 2, True), (4, 1, True)])
def test_it_is_full_when_the_window_has_no_room_for_what_waits(size: int, events: int, expected: bool) -> None:
    """By either bound; what was delivered does not count."""
    replay = with_events(*[b"x" * size] * events, keep=Window(4, 2))
    assert replay.is_full is expected
    replay.advance(replay.end, START)
    assert not replay.is_full


def test_what_is_given_up_counts_as_undelivered_though_it_can_be_read() -> None:
    """Also tokens without an event; and it counts once."""
    replay = with_events(b"a", b"")
    replay.give_up()
    assert (replay.n_undelivered, replay.n_waiting) == (2, 0)
    replay.advance(replay.end, START)
    assert (replay.n_delivered, replay.n_undelivered) == (0, 2)
    assert replay.read(START, 9)[0] == b"a"


class ReplayMachine(RuleBasedStateMachine):
    """Two readers of one response, against a list that keeps everything."""

    @initialize(keep=st.sampled_from([NOTHING, Window(8, 100), Window(100, 3), MANY]))
    def begin(self, keep: Window) -> None:
        self.budget = Budget(max_bytes=40, max_events=100)
        self.keep = keep
        self.replay = Backlog(self.budget, keep)
        self.frames: list[bytes] = []
        self.pushed = 0
        self.places = [START, START]
        self.passed = START

    @precondition(lambda self: not self.replay.is_ended)
    @rule(frame=st.binary(max_size=4), n_tokens=st.integers(0, 3), is_last=st.booleans())
    def push(self, frame: bytes, n_tokens: int, is_last: bool) -> None:
        if is_last and frame:
            self.replay.conclude(frame)
        else:
            self.replay.push(frame, n_tokens)
            self.pushed += n_tokens
        self.frames += [frame] if frame else []

    @rule(which=st.integers(0, 1), max_bytes=st.integers(1, 6))
    def read(self, which: int, max_bytes: int) -> None:
        """A reader gets what follows, once and in order."""
        start = self.places[which]
        if start == self.replay.end:
            return
        data, end = self.replay.read(start, max_bytes)
        assert data == b"".join(self.frames[start.event_id : end.event_id])
        assert end.event_id == start.event_id + 1 or len(data) <= max_bytes
        self.replay.advance(end, START)
        self.places[which] = end

    @rule()
    def trim(self) -> None:
        self.passed = min(self.places)
        self.replay.trim(self.passed)

    @rule(event_id=st.integers(0, 12))
    def return_to(self, event_id: int) -> None:
        """A reader asks again for what it may have got already."""
        match self.replay.cursor_after(event_id):
            case Cursor() as found:
                self.places[0] = found
                expected = b"".join(self.frames[event_id:])
                assert not expected or self.replay.read(found, 1 << 20)[0] == expected
            case Missed.GONE:
                assert event_id < self.passed.event_id
            case Missed.AT_END:
                assert self.replay.is_ended and event_id == len(self.frames)
            case Missed.NEVER_SENT:
                assert event_id > len(self.frames)

    @precondition(lambda self: self.replay.is_ended)
    @rule()
    def discard(self) -> None:
        self.replay.discard()
        self.places = [self.replay.end] * 2
        self.passed = self.replay.end
        assert (self.budget.n_bytes, self.budget.n_events, self.replay.n_waiting) == (0, 0, 0)

    @invariant()
    def every_token_counts_once(self) -> None:
        assert self.pushed == self.replay.n_delivered + self.replay.n_undelivered + self.replay.n_waiting

    @invariant()
    def what_is_held_is_known(self) -> None:
        held = self.frames[len(self.frames) - self.budget.n_events :] if self.budget.n_events else []
        assert self.budget.n_bytes == sum(map(len, held))


TestReplay = ReplayMachine.TestCase
TestReplay.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


def test_notice_is_past_when_the_response_has_ended() -> None:
    """It is no event: it has no place, and what is held does not grow by it."""
    budget = roomy()
    replay = with_events(b"a", budget=budget)
    replay.status_line = b": soon\n\n"
    assert (replay.end.event_id, budget.n_bytes, budget.n_events) == (1, 1, 1)
    replay.conclude(b"$")
    assert replay.status_line == b""


def test_what_is_gathered_is_held_until_the_last_events_take_its_place() -> None:
    """It is no event and cannot be read; its tokens are delivered with the last event, when all of it is."""
    budget = roomy()
    replay = Backlog(budget)
    replay.gather(70, 3)
    replay.gather(30, 1)
    assert (budget.n_bytes, budget.n_events, replay.gathered_bytes, replay.n_waiting) == (100, 0, 100, 4)
    assert replay.end == START
    replay.conclude(b"c" * 40, [b"a" * 40, b"b" * 40])
    assert (budget.n_bytes, budget.n_events, replay.gathered_bytes) == (120, 3, 0)
    replay.advance(cursor(replay, 2), START)
    assert (replay.n_delivered, replay.n_waiting) == (0, 4)
    replay.advance(replay.end, START)
    assert (replay.n_delivered, replay.n_waiting) == (4, 0)


def test_gathered_bytes_are_released_when_everything_is_discarded() -> None:
    """Its tokens reach nobody."""
    budget = roomy()
    replay = Backlog(budget)
    replay.gather(70, 3)
    replay.discard()
    replay.discard()
    assert (budget.n_bytes, replay.gathered_bytes, replay.n_undelivered) == (0, 0, 3)


def test_readers_of_large_events_share_them() -> None:
    """Each is read by itself and by nobody as a copy, from any place."""
    frames = [bytes([letter]) * 100 for letter in b"abcd"]
    replay = with_events(*frames)
    for _ in range(2):
        reached = START
        for number, frame in enumerate(frames, 1):
            data, reached = replay.read(reached, 50)
            assert data is frame and reached == Cursor(number, 100 * number, number)


def test_what_is_much_is_freed_later() -> None:
    """It is released at once, all the same: whole answers may be large."""
    budget = Budget(max_bytes=1 << 30, max_events=100)
    replay = Backlog(budget)
    for _ in range(3):
        replay.push(bytes(MUCH_BYTES), 1)
    _, place = replay.read(START, 1)
    replay.trim(place)
    assert (budget.n_events, budget.has_memory_to_free) == (2, False)
    replay.discard()
    assert (budget.n_bytes, budget.has_memory_to_free) == (0, True)
    assert budget.free_some(1 << 30) == 2 * MUCH_BYTES


def test_a_plain_response_holds_nothing_that_its_reader_has_got() -> None:
    """The tokens are delivered. A second call for the same cursor changes nothing."""
    budget = Budget(max_bytes=1 << 20, max_events=1 << 10)
    backlog = Backlog(budget)
    backlog.push(b"x", 1)
    for _ in range(2):
        backlog.advance(backlog.end, backlog.end)
        assert (budget.n_bytes, budget.n_events) == (0, 0)
        assert (backlog.n_delivered, backlog.n_undelivered, backlog.held_bytes) == (1, 0, 0)
    backlog.push(b"y", 1)
    assert backlog.read(cursor(backlog, 1), 10) == (b"y", backlog.end)
