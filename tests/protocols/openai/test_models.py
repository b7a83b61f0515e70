"""Cards of models, as the SDK reads them."""

from __future__ import annotations

import json

from openai.types import Model

from sluiceway.protocols.openai.models import ModelCard, card_body, list_body

CARD = ModelCard(id="org/model", created=1_700_000_000, max_model_len=2048)


def test_card_is_a_model_to_the_sdk_when_written() -> None:
    """With the length of the context beside the usual keys."""
    body = json.loads(card_body(CARD))
    assert Model.model_validate(body, strict=True).id == "org/model"
    assert body == {
        "id": "org/model",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "sluiceway",
        "max_model_len": 2048,
    }


def test_list_holds_the_cards_in_order_when_written() -> None:
    """Also when there are none."""
    body = json.loads(list_body([CARD, ModelCard(id="b", created=1, max_model_len=2)]))
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["org/model", "b"]
    assert json.loads(list_body([])) == {"object": "list", "data": []}
