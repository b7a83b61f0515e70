"""The description of the served model, as the SDK reads it."""

from __future__ import annotations

import json

from openai.types import Model

from sluiceway.protocols.openai.models import ModelCard, card_body, list_body

CARD = ModelCard(id="org/model", created=1_700_000_000, max_model_len=2048)


def test_sdk_reads_the_card_of_a_model() -> None:
    """It has one key more than in OpenAI's API: the length of the context."""
    body = json.loads(card_body(CARD))
    assert Model.model_validate(body, strict=True).id == "org/model"
    assert body == {
        "id": "org/model",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "sluiceway",
        "max_model_len": 2048,
    }


def test_list_has_the_cards_in_order() -> None:
    body = json.loads(list_body([CARD, ModelCard(id="b", created=1, max_model_len=2)]))
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["org/model", "b"]
    assert json.loads(list_body([])) == {"object": "list", "data": []}
