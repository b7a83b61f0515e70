"""The proxy of the environment, for addresses of this machine and others."""

from __future__ import annotations

import pytest

from sluiceway.store.proxies import proxy_for, without_password

PROXY = "http://proxy.invalid:3128"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set no proxies but those of the test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


HERE = [
    "localhost",
    "a.localhost",
    "LocalHost.",
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
]


@pytest.mark.parametrize("host", HERE)
def test_address_of_this_machine_has_no_proxy(environment: pytest.MonkeyPatch, host: str) -> None:
    environment.setenv("all_proxy", PROXY)
    assert proxy_for(f"http://{host}:8000/v1") is proxy_for(f"https://{host}/v1") is None


@pytest.mark.parametrize(
    "host", ["model.invalid", "10.0.0.1", "localhost.invalid", "[2001:db8::1]", "[::ffff:10.0.0.1]"]
)
def test_other_address_has_the_proxy_of_its_scheme(environment: pytest.MonkeyPatch, host: str) -> None:
    """Else it has the proxy for all schemes."""
    environment.setenv("http_proxy", PROXY)
    assert proxy_for(f"http://{host}/v1") == PROXY
    assert proxy_for(f"https://{host}/v1") is None
    environment.setenv("all_proxy", "other.invalid:1")
    assert proxy_for(f"http://{host}/v1") == PROXY
    assert proxy_for(f"https://{host}/v1") == "http://other.invalid:1"


def test_there_is_no_proxy_in_an_empty_environment(environment: pytest.MonkeyPatch) -> None:
    assert proxy_for("http://model.invalid") is None
    environment.setenv("http_proxy", "")
    assert proxy_for("http://model.invalid") is None


@pytest.mark.parametrize("exempt", ["*", "model.invalid", ".invalid", "x, model.invalid:80"])
def test_exempt_address_has_no_proxy(environment: pytest.MonkeyPatch, exempt: str) -> None:
    environment.setenv("http_proxy", PROXY)
    environment.setenv("no_proxy", exempt)
    assert proxy_for("http://model.invalid/v1") is None
    assert proxy_for("http://model.example/v1") == (None if exempt == "*" else PROXY)


@pytest.mark.parametrize("url", ["http://[::1", "http://a:port"])
def test_invalid_url_has_no_proxy(environment: pytest.MonkeyPatch, url: str) -> None:
    environment.setenv("http_proxy", PROXY)
    assert proxy_for(url) is None


def test_password_is_left_out() -> None:
    assert without_password("http://me:s@cret@proxy.invalid:3128") == "proxy.invalid:3128"
    assert without_password("proxy.invalid:3128") == "proxy.invalid:3128"
