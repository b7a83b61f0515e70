"""The soak, on a scripted server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sluiceway_lab.load.soak import SOAK_PARTS, soak
from support.scripted_http import completion_stream, plain, scripted_server
from support.target_servers import target_server


def answering(body: dict[str, Any]) -> Sequence[bytes]:
    return completion_stream(body["max_tokens"])


async def test_parts_are_all_requests_and_none_twice() -> None:
    async with scripted_server({"/v1/completions": answering}) as server:
        parts = [await soak(target_server(server.target), 33, 4, 0, part) for part in range(SOAK_PARTS)]
        prompts = [body["prompt"] for _, _, body in server.requests]
    assert len(prompts) == len(set(prompts)) == 33
    assert sum(part.figures["requests"] for part in parts) == 33
    assert all(part.figures["requests_per_s"] > 0 and not part.errors for part in parts)
    assert [(part.scenario, part.streams, part.repeat) for part in parts][-1] == ("soak", 4, SOAK_PARTS - 1)


async def test_memory_is_looked_at_after_a_part() -> None:
    async with scripted_server({"/v1/completions": answering}) as server:
        seen = await soak(target_server(server.target, processes={os.getpid(): "api"}), 10, 1, 0, 0)
        unseen = await soak(target_server(server.target), 10, 1, 0, 0)
    assert seen.figures["pss_bytes"] == seen.figures["pss_api_bytes"] > 0
    assert unseen.figures.keys() == {"requests", "requests_per_s"}


async def test_part_is_over_when_too_much_fails() -> None:
    async with scripted_server({"/v1/completions": [plain(503, b"busy")]}) as server:
        part = await soak(target_server(server.target), 10_000, 2, 0, 0)
        assert len(server.requests) == len(part.errors) == 101
    assert set(part.errors) == {"the server refused (503): busy"}
