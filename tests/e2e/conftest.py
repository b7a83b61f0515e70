"""Servers that all tests share. After each test they must hold nothing of its requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.requests import wait_quiet
from support.server import Server

E2E_TIMEOUT_S = 900
SLOW_TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test here as `e2e`, and gives it the time that starting processes takes."""
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.e2e)
            is_slow = item.get_closest_marker("slow") is not None
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S if is_slow else E2E_TIMEOUT_S))


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[Server]:
    with Server("fake") as server:
        yield server


@pytest.fixture(scope="session")
def shared_model() -> Iterator[Server]:
    model = os.environ.get("SLUICEWAY_TEST_MODEL")
    if not model:
        pytest.skip("SLUICEWAY_TEST_MODEL names no model file")
    with Server(model, "--dtype", "float32") as server:
        yield server


@pytest.fixture
def fake(shared_fake: Server) -> Iterator[Server]:
    """A server of the fake model. After the test it must hold nothing of the test's requests."""
    yield shared_fake
    wait_quiet(shared_fake)


@pytest.fixture
def model(shared_model: Server) -> Iterator[Server]:
    """A server of a real model in float32. After the test it must hold nothing of the test's requests."""
    yield shared_model
    wait_quiet(shared_model)
