"""Functions that wait for a condition are called once, when it holds."""

from __future__ import annotations

from sluiceway.api.responses.response import Signal


def test_waiting_functions_are_called_once_when_the_condition_holds() -> None:
    signal, called = Signal(holds=False), list[str]()
    signal.wait(lambda: called.append("first"))
    signal.set(False)
    assert called == []
    signal.set(True)
    signal.set(True)
    assert called == ["first"]


def test_a_function_that_waits_while_the_condition_holds_is_called_immediately() -> None:
    signal, called = Signal(holds=True), list[str]()
    signal.wait(lambda: called.append("first"))
    assert called == ["first"]


def test_a_function_may_end_the_condition_for_those_after_it() -> None:
    signal, called = Signal(holds=False), list[str]()

    def end() -> None:
        called.append("one")
        signal.set(False)

    signal.wait(end)
    signal.wait(end)
    signal.set(True)
    assert called == ["one"]
