"""Stop strings in a stream of text: what may go out now, and where the text ends; pure.

Theory of operation
-------------------
The text of a stream is one string, however it was split into pushes. It ends before the stop that *starts* first; of
stops that start at the same place the shortest wins, because it is complete first. So the cut is
`min(text.find(stop) for each stop found)`, and neither it nor the stop's name depends on token borders.

The matcher is an Aho-Corasick automaton (A. Aho, M. Corasick, "Efficient string matching", 1975): the state after each
character is the longest suffix of the text that begins some stop. That suffix, and nothing else, is held back: it is
all that could still turn out to belong to a stop. Each character costs constant time whatever the number of stops.

A complete stop is *pending* while an unfinished one that started earlier may still come true: with `("abcd", "bc")`,
the text `abc` may end at `bc` or, if a `d` follows, at `abcd`. The next characters, or the end of the text, decide.

Comparison is by code point: no case folding, no Unicode normalisation. The prompt is never pushed, so it never counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluiceway.errors import invalid


class StopResult(NamedTuple):
    """What one push or flush yields. `stop` is the stop string that ended the text, None while it goes on."""

    text: str
    stop: str | None = None


class _Node:
    """A prefix of some stop. `fall` is its longest proper suffix that is such a prefix too."""

    __slots__ = ("depth", "fall", "longest_stop", "next")

    def __init__(self, depth: int, fall: _Node | None) -> None:
        self.depth = depth
        self.fall = fall
        self.next: dict[str, _Node] = {}
        self.longest_stop: str | None = None
        """The longest stop that the text ends with in this state: of those, it starts first."""

    def step(self, char: str) -> _Node:
        """The state after one more character; amortised constant, as every fall undoes an earlier step."""
        node = self
        while (found := node.next.get(char)) is None:
            if node.fall is None:
                return node
            node = node.fall
        return found


class StopMatcher:
    """Finds the first stop of one stream. Not shared between streams; what it is made of is, with `anew`.

    Raises `RequestError` for an empty stop string, which would end every text before it begins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise invalid("A stop string must not be empty.", "stop")
        root = _automaton(stops)
        self._begin(root, re.compile("[" + re.escape("".join(root.next)) + "]") if stops else None)

    def anew(self) -> StopMatcher:
        """Another one for the same stops, at the beginning of a text: an automaton is dear, so choices share theirs."""
        other = StopMatcher.__new__(StopMatcher)
        other._begin(self._root, self._first_char)
        return other

    def _begin(self, root: _Node, first_char: re.Pattern[str] | None) -> None:
        self._root = self._state = root
        self._first_char = first_char
        self._held = ""
        self._pending: tuple[int, str] | None = None  # where in `_held + text so far` it starts, and the stop
        self._stopped: str | None = None

    def push(self, text: str) -> StopResult:
        """The text that is certain now. After a stop was reported nothing more comes, and the stop is repeated."""
        if self._stopped is not None:
            return StopResult("", self._stopped)
        if self._first_char is None:
            return StopResult(text)
        known = self._held + text
        for end in self._candidate_ends(known, len(self._held)):
            if self._pending is not None and end - self._state.depth >= self._pending[0]:
                return self._stop_in(known)
        return self._emit_all_but_prefix(known)

    def flush(self) -> StopResult:
        """The end of the text: what was held back, up to a pending stop if there is one."""
        if self._stopped is None and self._pending is not None:
            return self._stop_in(self._held)
        rest, self._held, self._state = self._held, "", self._root
        return StopResult(rest, self._stopped)

    def _candidate_ends(self, known: str, start: int) -> Iterator[int]:
        """Run the automaton over `known[start:]`; yield each position after which a pending stop may be decided."""
        position = start
        while position < len(known):
            if self._state is self._root and self._pending is None:
                position = self._skip(known, position)
                if position == len(known):
                    return
            self._state = self._state.step(known[position])
            position += 1
            self._note_complete_stop(position)
            if self._pending is not None:
                yield position

    def _skip(self, known: str, position: int) -> int:
        """The next position at which some stop could begin."""
        assert self._first_char is not None
        found = self._first_char.search(known, position)
        return len(known) if found is None else found.start()

    def _note_complete_stop(self, end: int) -> None:
        stop = self._state.longest_stop
        if stop is not None and (self._pending is None or end - len(stop) < self._pending[0]):
            self._pending = (end - len(stop), stop)

    def _stop_in(self, known: str) -> StopResult:
        assert self._pending is not None
        start, self._stopped = self._pending
        self._held, self._state, self._pending = "", self._root, None
        return StopResult(known[:start], self._stopped)

    def _emit_all_but_prefix(self, known: str) -> StopResult:
        n_certain = len(known) - self._state.depth
        self._held = known[n_certain:]
        if self._pending is not None:
            self._pending = (self._pending[0] - n_certain, self._pending[1])
        return StopResult(known[:n_certain])


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(0, None)
    for stop in stops:
        node = root
        for char in stop:
            node = node.next.setdefault(char, _Node(node.depth + 1, root))
        node.longest_stop = stop
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Set every `fall`, nearest to the root first, and let states know the stops that end inside them."""
    queue = deque(root.next.values())
    while queue:
        node = queue.popleft()
        assert node.fall is not None
        if node.longest_stop is None:
            node.longest_stop = node.fall.longest_stop
        for char, child in node.next.items():
            child.fall = node.fall.step(char)
            queue.append(child)
