"""All responses of this process by their ids, and the records of those that are gone. Each belongs to its caller.

A caller learns nothing about the responses of another one, not even that they exist: ids and keys are looked up under
the name of the caller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar, assert_never

from sluiceway.api.responses.response import Response, Signal
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal, RequestError
from sluiceway.obs.metrics import StreamsCensus
from sluiceway.refusals import RETRY_AFTER_S
from sluiceway.response.budget import Budget
from sluiceway.response.history import History, StreamRecord
from sluiceway.response.idempotency import HEADER as KEY_HEADER
from sluiceway.response.idempotency import Idempotency, KeyState
from sluiceway.response.lifecycle import State
from sluiceway.response.policy import Pressure

TICK_S = 0.25
"""How exactly the times of readers are kept. The shortest of these times is about a second."""
FREED_BYTES = 16 * 1024 * 1024
"""How much memory a tick frees: more than can be generated between two ticks, in about four milliseconds."""

_ID_TAKEN = Refusal(
    status=409,
    code="stream_id_taken",
    message="You already have a stream with this id; choose another id, or none.",
    param="stream_id",
)
_KEY_REUSED = Refusal(
    status=422,
    code="idempotency_key_reused",
    message="This `Idempotency-Key` was sent before with another request.",
    param=KEY_HEADER,
)
T = TypeVar("T", bound=Hashable)

GONE = Refusal(status=410, code="stream_gone", message="The requested events of this stream are not kept any more.")


class TimerWheel(Generic[T]):
    """Items by the tick at which they are due; each item has one timer. The cost of an operation does not grow."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._last_tick = -1
        """The last tick whose items were returned."""
        self._by_tick: dict[int, dict[T, None]] = {}
        self.tick_of: dict[T, int] = {}
        """The tick of each item. Others only read it."""

    def __len__(self) -> int:
        return len(self.tick_of)

    def set(self, item: T, at_s: float) -> None:
        """Set the only timer of this item; a past time means the next tick, and infinity means no timer."""
        if at_s == math.inf:
            self.drop(item)
        else:
            self._put(item, max(math.ceil(at_s / self._tick_s), self._last_tick + 1))

    def set_next(self, item: T) -> None:
        """Set the only timer of this item to the next tick."""
        tick = self._last_tick + 1
        if self.tick_of.get(item) != tick:  # each write to a slow reader comes here
            self._put(item, tick)

    def drop(self, item: T) -> None:
        """Remove the timer of this item. Idempotent."""
        tick = self.tick_of.pop(item, None)
        if tick is not None:
            items = self._by_tick[tick]
            del items[item]
            if not items:
                del self._by_tick[tick]

    def due(self, now_s: float) -> list[T]:
        """Remove and return the items that are due."""
        now = max(math.floor(now_s / self._tick_s), self._last_tick + 1)
        ticks = [tick for tick in self._by_tick if tick <= now]
        self._last_tick = now
        found = [item for tick in sorted(ticks) for item in self._by_tick.pop(tick)]
        for item in found:
            del self.tick_of[item]
        return found

    def _put(self, item: T, tick: int) -> None:
        if item in self.tick_of:
            self.drop(item)
        self.tick_of[item] = tick
        self._by_tick.setdefault(tick, {})[item] = None


class ResponseRegistry:
    """Finds responses by caller and id, bounds what they hold, wakes their writers and watches their times.

    A response is *open* while it generates or a client reads it.
    """

    def __init__(self, config: StreamsConfig, clock: Callable[[], float]) -> None:
        self.budget = Budget(
            max_bytes=config.max_stream_bytes, max_events=config.max_stream_events, max_kept=config.kept_streams
        )
        self._clock = clock
        self._keys = Idempotency(max_entries=config.idempotency_keys, ttl_s=config.idempotency_ttl_s)
        self._history = History(max_records=config.history_records, ttl_s=config.history_ttl_s)
        self._held: dict[tuple[str, str], Response] = {}
        """By caller and id."""
        self._open: dict[Response, None] = {}
        self._timers: TimerWheel[Response] = TimerWheel(TICK_S)
        self.touched: set[Response] = set()
        """Responses whose writers are woken next."""
        self._is_waking = False
        self.empty = Signal(holds=True)
        """Holds while no response is open."""
        self.timed = Signal(holds=False)
        """Holds while `tick` has something to do."""

    def __iter__(self) -> Iterator[Response]:
        """All responses that are held now, in any state. The caller may add and remove responses meanwhile."""
        return iter(list(self._held.values()))

    @property
    def n_open(self) -> int:
        """How many responses are open."""
        return len(self._open)

    def find(self, stream_id: str, caller: str) -> Response | StreamRecord | None:
        """The response if it is held, else its record, else None."""
        held = self._held.get((caller, stream_id))
        return self._history.find(stream_id, caller, self._clock()) if held is None else held

    def records(self, caller: str) -> list[StreamRecord]:
        """Records of all responses of this caller, the oldest first; those that are held come last."""
        held = [response.record for (owner, _), response in self._held.items() if owner == caller]
        return [*self._history.records(caller, self._clock()), *held]

    def check_free(self, stream_id: str, caller: str) -> None:
        """Raises `RequestError` (409) if the caller has a response with this id."""
        if (caller, stream_id) in self._held:
            raise RequestError(_ID_TAKEN)

    def claim(self, caller: str, key: str, digest: bytes, stream_id: str) -> Response | None:
        """The response that a repeated request belongs to; None for a new request, whose response gets this id.

        Raises `RequestError` if the key cannot be used.
        """
        is_held = (caller, stream_id) in self._held
        proposed = _address(caller, stream_id)
        state, address, retry_after_s = self._keys.claim(caller, key, digest, proposed, self._clock(), is_held=is_held)
        match state:
            case KeyState.NEW:
                return None
            case KeyState.CONFLICT:
                raise RequestError(_KEY_REUSED)
            case KeyState.TAKEN:
                raise RequestError(_ID_TAKEN)
            case KeyState.FULL:
                raise RequestError(_no_room_for_key(retry_after_s))
            case KeyState.GONE:
                raise RequestError(GONE)
            case KeyState.JOIN | KeyState.REPLAY:
                held = self._held.get((caller, address.partition("/")[2]))
                if held is None:
                    raise RequestError(GONE)
                if not held.is_broken:
                    return held
                self._keys.forget(address)
                if address == proposed:  # the client sends the same request again, with the id that it has chosen
                    self._evict(held)
                return self.claim(caller, key, digest, stream_id)
            case _:
                assert_never(state)

    def forget_key(self, stream_id: str, caller: str) -> None:
        """Free the key of a request that came to nothing, so that it may be sent again. Idempotent."""
        self._keys.forget(_address(caller, stream_id))

    def add(self, response: Response) -> None:
        """Add a new response. Its id must be free."""
        spec = response.spec
        if self._keys.is_used:
            self._keys.reused(_address(spec.caller, spec.stream_id))
        self._held[spec.caller, spec.stream_id] = response
        self._open[response] = None
        self.empty.holds = False

    def opened(self, response: Response) -> None:
        """Note that a client reads the response, perhaps again."""
        self.budget.reclaim(response)
        self._open[response] = None
        self.empty.holds = False

    def changed(self, response: Response, *, is_over: bool) -> None:
        """Keep, evict or watch a response that has changed."""
        if not is_over:
            self._timers.set(response, response.stream.quiet_until_s)
        elif self._is_kept(response):
            self._timers.set(response, response.stream.quiet_until_s)
        else:
            self._timers.drop(response)
        if not self._open:
            self.empty.set(True)
        if not self.timed.holds:
            self._note_timed()  # a later tick notes that nothing is left to do

    def watch(self, response: Response) -> None:
        """Look at the response at the next tick."""
        self._timers.set_next(response)
        if not self.timed.holds:
            self.timed.set(True)

    def tick(self) -> None:
        """Look at the responses that are due; under memory pressure at all of them. Free some released memory.

        Each tick frees a bounded amount, so that a large response that ends does not hold up the others.
        """
        self.budget.free_some(FREED_BYTES)
        due = self._timers.due(self._clock())
        if self.budget.pressure is not Pressure.NONE:
            due = list({**dict.fromkeys(due), **dict.fromkeys(self)})
        for response in due:
            response.tick()
        self.wake()
        self._note_timed()

    def wake(self) -> None:
        """Wake the writers of every touched response, including those that are touched meanwhile."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            while self.touched:
                for writer in [*self.touched.pop().writers.values()]:
                    writer.wake()
        finally:
            self._is_waking = False

    def census(self) -> StreamsCensus:
        """Count the responses by state, and what they hold together. Brings the counts of tokens up to date."""
        for response in self._held.values():
            response.count_tokens()
        states = Counter(response.stream.state for response in self._held.values())
        return StreamsCensus(
            by_state={state.value: states[state] for state in State},
            readers=sum(len(response.writers) for response in self._held.values()),
            backlog_bytes=self.budget.n_bytes,
            backlog_events=self.budget.n_events,
        )

    def _note_timed(self) -> None:
        holds = bool(self._timers.tick_of) or self.budget.has_memory_to_free
        if holds is not self.timed.holds:
            self.timed.set(holds)

    def _is_kept(self, response: Response) -> bool:
        """Keep a response that is over for readers that come later, or remove it. Returns whether it is kept."""
        self._open.pop(response, None)
        spec = response.spec
        if self._held.get((spec.caller, spec.stream_id)) is not response:  # another response has its id
            response.stream.evict_if_idle()
            response.count_tokens()
            return False
        if spec.has_key and not response.is_broken:
            self._keys.ended(_address(spec.caller, spec.stream_id), self._clock())
        if response.stream.state is State.CLOSED:
            self._remove(response)
            return False
        self.budget.keep(response, partial(self._evict, response), spec.caller, response.stream.backlog.held_bytes)
        return self._held.get((spec.caller, spec.stream_id)) is response

    def _evict(self, response: Response) -> None:
        """Remove a response that has ended, since its memory or its id is needed. A client may still read it."""
        is_over = response.is_over
        if is_over:
            response.stream.evict_if_idle()
        self._remove(response)
        if is_over:
            self._timers.drop(response)

    def _remove(self, response: Response) -> None:
        spec = response.spec
        self.budget.reclaim(response)
        response.count_tokens()
        del self._held[spec.caller, spec.stream_id]
        if spec.has_key and response.is_broken:
            # A client that sends the request again wants an answer, not the same error.
            self.forget_key(spec.stream_id, spec.caller)
        # A whole answer that was ended early has an error status, but it was generated, so it has a record.
        head = response.head
        if head is None or head.status < 400 or response.stream.is_accepted:
            self._history.add(response.record, spec.caller, self._clock())


def _no_room_for_key(retry_after_s: float) -> Refusal:
    return Refusal(
        status=503,
        code="idempotency_keys_full",
        message="There is no room for another `Idempotency-Key`; try again later, or send the request without one.",
        param=KEY_HEADER,
        retry_after_s=max(RETRY_AFTER_S, retry_after_s),
    )


def _address(caller: str, stream_id: str) -> str:
    """An id that no two responses share; no caller has a slash in its name."""
    return f"{caller}/{stream_id}"
