"""Marks of tests that need programs of the system; `scripts/test` installs them if it can."""

from __future__ import annotations

import pytest

from sluiceway_lab.load.browser import browser_command
from sluiceway_lab.load.proxies import nginx_command

needs_nginx = pytest.mark.skipif(nginx_command() is None, reason="nginx is not installed")
needs_browser = pytest.mark.skipif(browser_command() is None, reason="Chromium is not installed")
