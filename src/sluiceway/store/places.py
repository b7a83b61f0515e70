"""Where models are kept, and whether the network may be used: the environment, read in one place."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_DIR_VARIABLE = "SLUICEWAY_CACHE_DIR"
OFFLINE_VARIABLE = "SLUICEWAY_OFFLINE"


def cache_dir() -> Path:
    """Our own folder: `SLUICEWAY_CACHE_DIR`, else the user's cache directory of this system."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("sluiceway")


def hub_cache_dir() -> Path | None:
    """Where hub repositories are kept. None: the hub client's own cache, shared with every other tool that uses it.

    Whoever sets `SLUICEWAY_CACHE_DIR` wants one folder for everything, so then they are kept in there.
    """
    return cache_dir() / "hub" if os.environ.get(CACHE_DIR_VARIABLE) else None


def is_offline() -> bool:
    return os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no", "off")
