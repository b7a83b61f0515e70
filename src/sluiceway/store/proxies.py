"""Finds the proxy for an address in the environment: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL; None if there is none, and always None for an address of this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None  # not a valid URL; the request will fail with a clear error
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_of_this_machine(host) or proxy_bypass(f"{host}:{port}"):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def without_password(proxy: str) -> str:
    """Return host and port of a proxy, for a message."""
    return proxy.rpartition("://")[2].rpartition("@")[2]


def _is_of_this_machine(host: str) -> bool:
    """True for names and addresses of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return name == "localhost" or name.endswith(".localhost")
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified
