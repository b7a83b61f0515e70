"""A body must be JSON, complete, small enough and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from sluiceway.api.http.request import BodyLimits, BodyRoom, pass_over_body, read_json_body
from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.common.body import QUICK_BYTES
from sluiceway.refusals import OVERLOADED
from support.asgi_driver import AsgiDriver, settle

LIMITS = BodyLimits(max_bytes=10)


async def unused(*_: Any) -> None:
    raise AssertionError("the application is not called")


async def read(driver: AsgiDriver, limits: BodyLimits = LIMITS) -> bytes:
    return b"".join(await read_json_body(driver.scope, driver.receive, limits))


async def refusal_of(driver: AsgiDriver, limits: BodyLimits = LIMITS) -> Refusal:
    with pytest.raises(RequestError) as caught:
        await read(driver, limits)
    return caught.value.refusal


@pytest.mark.parametrize("body", [b"0123456789", [b"01234", b"", b"56789"], [bytes([c]) for c in b"0123456789"]])
async def test_a_body_within_the_limit_is_read_whole(body: bytes | list[bytes]) -> None:
    """It may come in one part or in many, and be as large as the limit."""
    assert await read(AsgiDriver(unused, "POST", body=body)) == b"0123456789"


async def test_small_parts_of_a_body_are_joined() -> None:
    """Each part is reported when it comes. Large parts are not copied."""
    told: list[int] = []
    pieces = [b"ab"] * 10_000 + [b"x" * 9000, b"y" * 9000] + [b"c"] * 10
    driver = AsgiDriver(unused, "POST", body=pieces)
    limits = BodyLimits(max_bytes=1 << 20)
    parts = await read_json_body(driver.scope, driver.receive, limits, lambda part, n_bytes: told.append(len(part)))
    assert b"".join(parts) == b"".join(pieces) and told == [len(piece) for piece in pieces]
    assert len(parts) < 10 and pieces[-11] in parts


async def test_a_body_that_says_it_is_too_long_is_not_read() -> None:
    driver = AsgiDriver(unused, "POST", body=b"x", headers={"Content-Length": "11"})
    assert (await refusal_of(driver)).status == 413
    assert (await driver.receive())["body"] == b"x"


async def test_a_body_of_unknown_length_is_read_up_to_the_limit() -> None:
    """No further part is read."""
    driver = AsgiDriver(unused, "POST", body=[b"x" * 6] * 9)
    refusal = await refusal_of(driver)
    assert (refusal.status, refusal.code) == (413, "body_too_large") and "10 bytes" in refusal.message
    assert len(driver.pieces) == 7


async def test_a_slow_body_is_refused() -> None:
    """The time is for the whole body."""
    driver = AsgiDriver(unused, "POST", body=[b"x"], sends_all=False)
    assert (await refusal_of(driver, BodyLimits(10, timeout_s=0.0))).status == 408


async def test_a_client_that_leaves_is_no_error() -> None:
    driver = AsgiDriver(unused, "POST", body=[b"x"], sends_all=False)
    reading = asyncio.create_task(read(driver))
    await settle()
    driver.vanish()
    with pytest.raises(ClientDisconnect):
        await reading


@pytest.mark.parametrize("label", ["application/json", "Application/JSON; charset=latin-1", "application/json ;x"])
async def test_json_is_recognised_by_its_content_type(label: str) -> None:
    """Its case and its parameters do not matter."""
    assert await read(AsgiDriver(unused, "POST", body=b"{}", headers={"Content-Type": label})) == b"{}"


@pytest.mark.parametrize("label", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_another_content_type_is_refused(label: str) -> None:
    """A missing content type is refused too."""
    driver = AsgiDriver(unused, "POST", body=b"{}", headers={"Content-Type": label})
    if not label:
        driver.scope["headers"] = [(name, value) for name, value in driver.scope["headers"] if value]
    refusal = await refusal_of(driver)
    assert (refusal.status, refusal.code) == (400, "unsupported_media_type")


@pytest.mark.parametrize(
    ("encoding", "is_taken"), [("identity", True), ("Identity", True), ("gzip", False), ("br, identity", False)]
)
async def test_a_compressed_body_is_refused(encoding: str, is_taken: bool) -> None:
    """The error says so, and does not call it bad JSON."""
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    driver = AsgiDriver(unused, "POST", body=b"{}", headers=headers)
    if is_taken:
        assert await read(driver) == b"{}"
        return
    refusal = await refusal_of(driver)
    assert (refusal.status, refusal.code) == (400, "unsupported_media_type") and "Content-Encoding" in refusal.message


@pytest.mark.parametrize("body", [b"", b"{}", [b"x" * 100] * 9])
async def test_an_ignored_body_is_read_to_its_end(body: bytes | list[bytes]) -> None:
    """So the next request can follow."""
    driver = AsgiDriver(unused, "POST", body=body)
    await pass_over_body(driver.receive)
    assert driver.pieces == []


async def test_an_ignored_body_is_left_if_it_is_too_large() -> None:
    """The same holds if it is too slow or incomplete. The request is still carried out."""
    long = AsgiDriver(unused, "POST", body=[b"x" * 6] * 9)
    await pass_over_body(long.receive, max_bytes=10)
    assert len(long.pieces) == 7
    slow = AsgiDriver(unused, "POST", body=[b"x"], sends_all=False)
    await pass_over_body(slow.receive, timeout_s=0.0)
    gone = AsgiDriver(unused, "POST", body=[b"x"], sends_all=False)
    gone.vanish()
    await pass_over_body(gone.receive)


async def test_each_part_is_reported_with_the_size_so_far() -> None:
    """Empty parts are left out."""
    told: list[tuple[bytes, int]] = []
    driver = AsgiDriver(unused, "POST", body=[b"ab", b"", b"cde"])
    parts = await read_json_body(driver.scope, driver.receive, LIMITS, lambda part, n: told.append((part, n)))
    assert b"".join(parts) == b"abcde" and told == [(b"ab", 2), (b"cde", 5)]


def test_room_is_for_the_long_bodies_of_all_requests() -> None:
    """Bytes beyond a short body count until the request releases them."""
    room = BodyRoom(100)
    with room.hold() as grow, room.hold() as grow_other:
        grow(QUICK_BYTES)
        assert room.n_bytes == 0
        grow(QUICK_BYTES + 60)
        grow_other(QUICK_BYTES + 40)
        assert room.n_bytes == 100
        with pytest.raises(RequestError) as caught:
            grow_other(QUICK_BYTES + 41)
        assert caught.value.refusal == OVERLOADED
        with room.hold() as grow_short:
            grow_short(QUICK_BYTES)
    assert room.n_bytes == 0
