"""Where the pipes of one server lie: files in a private directory, or names inside one process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addresses:
    """ZeroMQ addresses of every pipe, named by what travels on them. All pipes of a server are in this list."""

    api_to_tokenizer: str
    tokenizer_to_api: str
    tokenizer_to_engine: str
    engine_to_tokenizer: str
    control: str

    @classmethod
    def in_directory(cls, directory: str) -> Addresses:
        """Socket files in `directory`, which should be private (mode 0700)."""
        return cls._with_prefix(f"ipc://{directory}/")

    @classmethod
    def in_process(cls, name: str) -> Addresses:
        """Pipes between threads that share a ZeroMQ context; `name` keeps several servers apart."""
        return cls._with_prefix(f"inproc://{name}/")

    @classmethod
    def _with_prefix(cls, prefix: str) -> Addresses:
        return cls(
            api_to_tokenizer=f"{prefix}api-to-tokenizer",
            tokenizer_to_api=f"{prefix}tokenizer-to-api",
            tokenizer_to_engine=f"{prefix}tokenizer-to-engine",
            engine_to_tokenizer=f"{prefix}engine-to-tokenizer",
            control=f"{prefix}control",
        )
