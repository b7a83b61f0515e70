"""Stop strings: what is held back, which stop wins, and that neither depends on how the text is split."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import RequestError
from sluiceway.tokenizer.text.stops import StopMatcher, StopResult

SHORT_TEXT = st.text(alphabet="abc", max_size=14)
SHORT_STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=5)


def run(stops: Sequence[str], pushes: Iterable[str]) -> StopResult:
    """Push the pieces, flush, and return the whole text and the stop."""
    matcher = StopMatcher(stops)
    parts: list[str] = []
    for text in pushes:
        result = matcher.push(text)
        parts.append(result.text)
        if result.stop is not None:
            return StopResult("".join(parts), result.stop)
    last = matcher.flush()
    return StopResult("".join(parts) + last.text, last.stop)


def expected(stops: Sequence[str], text: str) -> StopResult:
    """Apply the rule in one line: the smallest start wins, then the smallest length."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return StopResult(text)
    start, _, stop = min(found)
    return StopResult(text[:start], stop)


def every_split(text: str) -> Iterable[list[str]]:
    """Yield all ways to cut a text into consecutive pieces."""
    for cuts in itertools.product((False, True), repeat=max(len(text) - 1, 0)):
        borders = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["ab", "abc", "b"], "xxabcx"),
        (["abcd", "bc"], "xabce"),
        (["abcd", "bc"], "xabcd"),
        (["abcd", "bc"], "xabc"),
        (["abcde", "bcx", "c"], "zabcde"),
        (["abcde", "bcd", "c"], "zabcdz"),
        (["abcde", "bcd", "c"], "zabcd"),
        (["aab"], "aaaab"),
        (["aa"], "aaa"),
        (["DE"], "ABCDEF"),
        (["\n\n"], "one\ntwo\n\nend"),
        (["😀"], "a😀b"),
        (["é"], "cafe\u0301 cafe\u0301"),
        (["STOP"], "stop here"),
        (["]", "^", "-", "\\"], "a-b"),
        ([], "nothing to look for"),
        (["x"], ""),
    ],
)
def test_result_is_the_earliest_stop_however_the_text_is_split(stops: list[str], text: str) -> None:
    """For every split of every example."""
    for pieces in every_split(text[:11]):
        assert run(stops, [*pieces, text[11:]]) == expected(stops, text), pieces


@settings(deadline=None, derandomize=True)
@given(SHORT_STOPS, SHORT_TEXT, st.lists(st.integers(0, 14), max_size=6))
def test_result_is_the_earliest_stop_for_random_stops_texts_and_splits(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    """A small alphabet makes stops overlap."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    assert run(stops, pieces) == expected(stops, text)
    assert run(stops, list(text)) == expected(stops, text)


@settings(deadline=None, derandomize=True)
@given(SHORT_STOPS, SHORT_TEXT)
def test_held_text_is_always_the_beginning_of_a_stop(stops: list[str], text: str) -> None:
    """Nothing else is held back."""
    matcher = StopMatcher(stops)
    emitted = ""
    for i, char in enumerate(text):
        result = matcher.push(char)
        if result.stop is not None:
            return
        emitted += result.text
        held = text[len(emitted) : i + 1]
        assert text.startswith(emitted)
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_push_emits_text_immediately_when_no_stop_can_begin_there() -> None:
    """A long stop does not delay text that differs from its beginning."""
    matcher = StopMatcher(["x" * 60])
    assert matcher.push("hello ") == StopResult("hello ")
    assert matcher.push("xxx") == StopResult("")
    assert matcher.push("y") == StopResult("xxxy")


def test_push_repeats_the_stop_after_the_end() -> None:
    """Text that is pushed after the end changes nothing."""
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == StopResult("a", ".")
    assert matcher.push("c.") == StopResult("", ".")
    assert matcher.flush() == StopResult("", ".")


def test_flush_gives_the_held_prefix_when_the_text_ends_inside_a_stop() -> None:
    """Half of a stop is text."""
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == StopResult("the ")
    assert matcher.flush() == StopResult("EN")
    assert matcher.flush() == StopResult("")


def test_flush_reports_a_pending_stop_when_the_longer_one_never_came() -> None:
    """A complete stop within an unfinished earlier one counts when the text ends."""
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xab") == StopResult("x")
    assert matcher.push("c") == StopResult("")
    assert matcher.flush() == StopResult("a", "bc")


def test_matcher_refuses_an_empty_stop() -> None:
    """An empty stop would match everywhere."""
    with pytest.raises(RequestError) as caught:
        StopMatcher(["a", ""])
    assert caught.value.refusal.param == "stop"


def test_push_finds_the_longest_when_hundreds_of_stops_are_nested() -> None:
    """The stops share prefixes and suffixes, and the text continues all of them."""
    stops = ["a" * n + "b" for n in range(1, 300)]
    matcher = StopMatcher(stops)
    text = "a" * 50_000
    assert matcher.push(text).text == "a" * (50_000 - 299)
    assert matcher.push("b") == StopResult("", "a" * 299 + "b")


@pytest.mark.parametrize("stops", [(), ("END", "QED")])
def test_a_copied_matcher_starts_a_new_text(stops: Sequence[str]) -> None:
    """It shares only the automaton with the first one."""
    first = StopMatcher(stops)
    first.push("x E")
    second = first.for_new_text()
    assert second.push("ND") == StopResult("ND")
    assert first.push("ND") == (StopResult("", "END") if stops else StopResult("ND"))
    assert second.push("END").stop == ("END" if stops else None)
    assert second.for_new_text().push("x") == StopResult("x")
