"""Finds stop strings in a stream of text: which text is certain now, and where the text ends; pure.

Theory of operation
-------------------
The text of a stream is one string, however it is split into pushes. It ends before the stop that *starts* first. If
several start at the same place, the shortest one wins, because it is complete first. So the text is cut at
`min(text.find(stop) for each stop found)`. Neither the cut nor the reported stop depends on where tokens begin and end.

The matcher is an Aho-Corasick automaton (A. Aho, M. Corasick, "Efficient string matching", 1975). Its state after each
character is the longest suffix of the text that is the beginning of a stop. Exactly this suffix is held back, since
only it may still become part of a stop. Each character costs constant time, whatever the number of stops.

A complete stop is *pending* while a stop that started earlier may still be completed: with `("abcd", "bc")`, the text
`abc` ends before `bc`, or, if a `d` follows, before `abcd`. The next characters, or the end of the text, decide.

Characters are compared by code point, without case folding or Unicode normalisation. The prompt is never pushed, so
stops in it do not count.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluiceway.errors import invalid

_NO_CHAR = 0x110000
"""A number that is not a code point."""

_NO_STOP = -1


class StopResult(NamedTuple):
    """The text that is certain now, and the stop string that ended it; None while the text goes on."""

    text: str
    stop: str | None = None


class _Automaton:
    """Holds the states of an Aho-Corasick automaton as numbers: each is a prefix of a stop, 0 the empty one.

    The states are in arrays, with about ten bytes for each character of a stop. The first transition from a state leads
    to the next number. Further transitions are in `_branches`.
    """

    __slots__ = ("_branches", "_fallbacks", "_next_chars", "depths", "first_chars", "stop_numbers", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._next_chars = array("I", [_NO_CHAR])
        self._fallbacks = array("I", [0])
        """For each state, its longest proper suffix that is also a state."""
        self.stop_numbers = array("i", [_NO_STOP])
        """For each state, the longest stop that the text ends with, which is the one that starts first."""
        self._branches: dict[tuple[int, int], int] = {}
        self.depths = array("I", [0])
        self.first_chars = "".join({stop[0] for stop in stops})
        origins = [(0, 0)]
        for number, stop in enumerate(stops):
            state = 0
            for char in map(ord, stop):
                found = self._next_state(state, char)
                state = self._add(state, char, origins) if found is None else found
            self.stop_numbers[state] = number
        self._link(origins)

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character. Amortised constant time: every fall undoes an earlier step."""
        code, next_chars, branches = ord(char), self._next_chars, self._branches
        while next_chars[state] != code:
            if branches and (found := branches.get((state, code))) is not None:
                return found
            if not state:
                return 0
            state = self._fallbacks[state]
        return state + 1

    def _next_state(self, state: int, char: int) -> int | None:
        return state + 1 if self._next_chars[state] == char else self._branches.get((state, char))

    def _add(self, state: int, char: int, origins: list[tuple[int, int]]) -> int:
        new = len(self.depths)
        if new == state + 1:
            self._next_chars[state] = char
        else:
            self._branches[state, char] = new
        self._next_chars.append(_NO_CHAR)
        self._fallbacks.append(0)
        self.stop_numbers.append(_NO_STOP)
        self.depths.append(self.depths[state] + 1)
        origins.append((state, char))
        return new

    def _link(self, origins: Sequence[tuple[int, int]]) -> None:
        """Set every fallback, from the root on, and note the stops that states end with."""
        for state in sorted(range(1, len(origins)), key=self.depths.__getitem__):
            origin, char = origins[state]
            fall = self.step(self._fallbacks[origin], chr(char)) if origin else 0
            self._fallbacks[state] = fall
            if self.stop_numbers[state] == _NO_STOP:
                self.stop_numbers[state] = self.stop_numbers[fall]


class StopMatcher:
    """Finds the first stop in the text of one stream. `for_new_text` makes one for another stream.

    Raises `RequestError` for an empty stop string, which would end every text before it begins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise invalid("A stop string must not be empty.", "stop")
        automaton = _Automaton(stops)
        self._begin(automaton, re.compile("[" + re.escape(automaton.first_chars) + "]") if stops else None)

    def for_new_text(self) -> StopMatcher:
        """Make a matcher for the same stops and another text. They share the automaton, which is expensive."""
        other = StopMatcher.__new__(StopMatcher)
        other._begin(self._automaton, self._first_char)
        return other

    def _begin(self, automaton: _Automaton, first_char: re.Pattern[str] | None) -> None:
        self._automaton = automaton
        self._state = 0
        self._first_char = first_char
        self._held = ""
        self._pending: tuple[int, str] | None = None  # where in `_held + text so far` it starts, and the stop
        self._stopped: str | None = None

    def push(self, text: str) -> StopResult:
        """Add text, and return what is certain now. After a stop there is no more text, and the stop is repeated."""
        if self._stopped is not None:
            return StopResult("", self._stopped)
        if self._first_char is None:
            return StopResult(text)
        known = self._held + text
        for end in self._candidate_ends(known, len(self._held)):
            if self._pending is not None and end - self._automaton.depths[self._state] >= self._pending[0]:
                return self._stop_in(known)
        return self._emit_all_but_prefix(known)

    def flush(self) -> StopResult:
        """End the text, and return what was held back, up to a pending stop if there is one."""
        if self._stopped is None and self._pending is not None:
            return self._stop_in(self._held)
        rest, self._held, self._state = self._held, "", 0
        return StopResult(rest, self._stopped)

    def _candidate_ends(self, known: str, start: int) -> Iterator[int]:
        """Run the automaton over `known[start:]`; yield each position after which a pending stop may be decided."""
        position = start
        while position < len(known):
            if not self._state and self._pending is None:
                position = self._skip(known, position)
                if position == len(known):
                    return
            self._state = self._automaton.step(self._state, known[position])
            position += 1
            self._note_complete_stop(position)
            if self._pending is not None:
                yield position

    def _skip(self, known: str, position: int) -> int:
        """Return the next position at which a stop may begin."""
        assert self._first_char is not None
        found = self._first_char.search(known, position)
        return len(known) if found is None else found.start()

    def _note_complete_stop(self, end: int) -> None:
        number = self._automaton.stop_numbers[self._state]
        if number == _NO_STOP:
            return
        stop = self._automaton.stops[number]
        if self._pending is None or end - len(stop) < self._pending[0]:
            self._pending = (end - len(stop), stop)

    def _stop_in(self, known: str) -> StopResult:
        assert self._pending is not None
        start, self._stopped = self._pending
        self._held, self._state, self._pending = "", 0, None
        return StopResult(known[:start], self._stopped)

    def _emit_all_but_prefix(self, known: str) -> StopResult:
        n_certain = len(known) - self._automaton.depths[self._state]
        self._held = known[n_certain:]
        if self._pending is not None:
            self._pending = (self._pending[0] - n_certain, self._pending[1])
        return StopResult(known[:n_certain])
