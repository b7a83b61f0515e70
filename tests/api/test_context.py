"""The context that all endpoints share."""

from __future__ import annotations

from sluiceway.refusals import OVERLOADED
from support.asgi_driver import Api, AsgiDriver


async def test_a_refusal_is_sent_counted_and_logged() -> None:
    """Each refused request goes through `refuse`."""
    api = Api(max_sequences=1)
    driver = AsgiDriver(api.app, "GET", "/v1/streams", headers={"x-request-id": "one"})
    driver.scope["query_string"] = b"limit=0"
    await driver.start().done()
    assert driver.status == 400
    (line,) = [line for line in api.lines if line["event"] == "rejected"]
    assert (line["request_id"], line["status"]) == ("one", 400)
    assert sum(api.metrics.stats()["rejected"].values()) == 1 and OVERLOADED.code not in api.metrics.requests_rejected
