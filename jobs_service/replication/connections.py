"""TLS and SOCKS: how connections are made."""

import ssl

import aiohttp

from jobs_service.replication.endpoint import Proxy, Tls
from jobs_service.replication.errors import InvalidEndpoint


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What certificates are checked against, and what is shown. Reads files."""
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
    """Connections, through a SOCKS proxy where that is the proxy; the number is bounded elsewhere."""
    if proxy is None or not proxy.url.startswith("socks"):
        return aiohttp.TCPConnector(limit=0)
    try:
        from aiohttp_socks import ProxyConnector
    except ImportError:
        raise InvalidEndpoint("a SOCKS proxy needs `pip install jobs-service[socks]`") from None
    password = None if proxy.password is None else proxy.password.reveal()
    url, remote = proxy.url.replace("socks5h://", "socks5://"), not proxy.url.startswith("socks4://")
    connector = ProxyConnector.from_url(url, username=proxy.user, password=password, rdns=remote, limit=0)
    assert isinstance(connector, aiohttp.BaseConnector)
    return connector
