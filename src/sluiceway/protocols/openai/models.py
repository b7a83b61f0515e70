"""The answers of `/v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluiceway.sse.encoder import encode_json


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model. `created`: seconds since 1970. `max_model_len`: tokens of prompt and answer together."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "sluiceway"

    def fields(self) -> dict[str, str | int]:
        """The card as it is written. `max_model_len` is an extension: user interfaces size their prompts by it."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": self.owned_by,
            "max_model_len": self.max_model_len,
        }


def card_body(card: ModelCard) -> bytes:
    """The answer for one model."""
    return encode_json(card.fields())


def list_body(cards: Sequence[ModelCard]) -> bytes:
    """The answer for all models."""
    return encode_json({"object": "list", "data": [card.fields() for card in cards]})
