"""Connections over TLS and SOCKS."""

import ssl
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from jobs_service.replication.endpoint import Proxy, Tls
from jobs_service.replication.errors import InvalidEndpoint

FAILURES: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, ValueError)
"""The errors of a failed request; TimeoutError is an OSError."""

try:
    from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError, ProxyType

    FAILURES += (ProxyConnectionError, ProxyError, ProxyTimeoutError)
    _HAS_SOCKS = True
except ImportError:
    _HAS_SOCKS = False

_SOCKS_PORT: Final = 1080


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client with these settings. Reads files."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert_file is not None:
            password = None if tls.key_password is None else tls.key_password.reveal()
            context.load_cert_chain(tls.cert_file, tls.key_file, password)
    except OSError as error:
        raise InvalidEndpoint(f"the certificates cannot be used: {error.strerror or error}") from None
    return context


def connector_for(proxy: Proxy | None) -> aiohttp.BaseConnector:
    """Return a connector, through the proxy if it is a SOCKS proxy; the number of connections is bounded elsewhere."""
    if proxy is None or not proxy.url.startswith("socks"):
        return aiohttp.TCPConnector(limit=0)
    if not _HAS_SOCKS:
        raise InvalidEndpoint("a SOCKS proxy needs `pip install jobs-service[socks]`")
    parts = urlsplit(proxy.url)
    return ProxyConnector(
        host=parts.hostname or "",
        port=parts.port or _SOCKS_PORT,
        proxy_type=ProxyType.SOCKS4 if parts.scheme == "socks4" else ProxyType.SOCKS5,
        username=proxy.user,
        password=None if proxy.password is None else proxy.password.reveal(),
        rdns=True,  # The proxy may know names that are not known here.
        limit=0,
    )
