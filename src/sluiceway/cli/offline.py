"""An `LLM` of this process for the commands that need no server, with a bar while it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.config import ModelFiles

if TYPE_CHECKING:
    from sluiceway.llm import LLM


def load(files: ModelFiles, **settings: Any) -> LLM:
    """The model, ready. The settings are those of `LLM`."""
    from sluiceway.llm import LLM
    from sluiceway.obs.log import configure_log
    from sluiceway.store.bar import loading_bar

    configure_log("warning", "text", process="llm")  # to standard error: standard output is the answer's
    with loading_bar(files.name) as on_load:
        return LLM(files, **settings, on_load=on_load)
