"""Addresses and credentials of databases: endpoints from URLs, or from objects as in `_replicator` documents.

Credentials are split off from the address as it is read, so that the address alone can be shown, logged and hashed.
"""

import asyncio
import inspect
import os
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, quote_plus, unquote, urlsplit

from jobs_service.replication.contract import InvalidEndpoint

MASK: Final = "***"
SecretSource: TypeAlias = Callable[[str], "str | Awaitable[str]"]
"""Returns the value of `secret:NAME`, given the name; plain or a coroutine function."""

_IN_TEXT = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s'\"<>]*@")
_SENSITIVE = re.compile(r"auth|cookie|token|secret|pass|credential|key|session|signature", re.IGNORECASE)
_SHORTEST: Final = 3
"""Least letters of a secret that is masked in texts: a shorter one occurs everywhere."""
_PORTS: Final = {"http": 80, "https": 443}
_PROXIES: Final = ("http", "https", "socks4", "socks5", "socks5h")
_FIELDS: Final = {"url", "auth", "headers", "proxy", "tls"}


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is shown as `***` and cannot be written as JSON; `reveal` returns it."""

    _text: str

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return MASK


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: `ca_file` has authorities of one's own, `cert_file` and `key_file` are the client's certificate."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, with its credentials beside its address."""

    url: str
    user: str | None = None
    password: Secret | None = None


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database's address without credentials, and the means to connect to it."""

    url: str
    """The address without credentials, query, or a slash at the end."""
    user: str | None = None
    password: Secret | None = None
    headers: Mapping[str, Secret] = field(default_factory=dict)
    proxy: Proxy | None = None
    tls: Tls = Tls()

    @property
    def masked(self) -> str:
        """The address, for display."""
        return self.url

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return _origin(self.url)

    @property
    def session_url(self) -> str:
        """The address that issues cookies: `_session` at the root of the server."""
        return f"{self.origin}/_session"

    def redacted(self, text: str) -> str:
        """Return a foreign text, such as a server's reason, with repeated credentials masked."""
        secrets = [self.password, *self.headers.values(), self.tls.key_password]
        pairs = [(self.user, self.password)]
        if self.proxy is not None:
            secrets.append(self.proxy.password)
            pairs.append((self.proxy.user, self.proxy.password))
        plain = [each.reveal() for each in secrets if each is not None]
        plain += [b64encode(f"{user}:{each.reveal()}".encode()).decode() for user, each in pairs if each is not None]
        for each in sorted((each for each in plain if len(each) >= _SHORTEST), key=len, reverse=True):
            for form in (each, quote(each, safe=""), quote_plus(each)):
                text = text.replace(form, MASK)
        return masked_text(text)

    def form_for_id(self) -> list[Any]:
        """Return the identity of the database as JSON, without renewable parts such as passwords."""
        headers = sorted(
            [name.lower(), value.reveal()] for name, value in self.headers.items() if not _SENSITIVE.search(name)
        )
        return [self.url, headers]

    async def resolved(self, secrets: SecretSource | None = None) -> "DatabaseAddress":
        """Return the endpoint with the values of `env:NAME`, `file:PATH` and `secret:NAME`.

        Raises `InvalidEndpoint` if a value is missing; the message names the reference, never the value.
        """
        proxy, tls = self.proxy, self.tls
        if proxy is not None and proxy.password is not None:
            proxy = replace(proxy, password=await _resolve(proxy.password, secrets))
        if tls.key_password is not None:
            tls = replace(tls, key_password=await _resolve(tls.key_password, secrets))
        return replace(
            self,
            password=None if self.password is None else await _resolve(self.password, secrets),
            headers={name: await _resolve(value, secrets) for name, value in self.headers.items()},
            proxy=proxy,
            tls=tls,
        )


def parse_endpoint(
    given: str | Mapping[str, Any], *, what: str = "endpoint", proxy: str | None = None
) -> DatabaseAddress:
    """Read a URL, or an object `{url, auth: {basic: {username, password}}, headers, proxy, tls}`.

    Args:
        given: the URL or the object; passwords, headers' values and a key's password may be `env:NAME`, `file:PATH`
            or `secret:NAME`, or `plain:...` for a value that begins with one of these words by chance.
        what: the name of the endpoint in messages ("source", "target").
        proxy: used if the object names none.

    Raises:
        InvalidEndpoint: the description is invalid; the message is one line, without the credentials.
    """
    form: Mapping[str, Any] = {"url": given} if isinstance(given, str) else given
    if not isinstance(form, Mapping):
        raise InvalidEndpoint(f"{what} must be a URL or an object with a url, not {type(given).__name__}")
    unknown = sorted(str(name) for name in form if name not in _FIELDS)
    if unknown:
        raise InvalidEndpoint(
            f"{what} has unknown fields: {', '.join(unknown)}; known are {', '.join(sorted(_FIELDS))}"
        )
    url, user, password = _split(form.get("url"), what, tuple(_PORTS))
    auth_user, auth_password = _basic(form.get("auth"), what)
    headers = _strings(form.get("headers"), f"{what}.headers")
    return DatabaseAddress(
        url=url,
        user=auth_user if auth_user is not None else user,
        password=auth_password if auth_user is not None else password,
        headers={name: Secret(value) for name, value in headers.items()},
        proxy=_proxy(form.get("proxy") or proxy, what),
        tls=_tls(form.get("tls"), what),
    )


def masked_text(text: str) -> str:
    """Return the text with the credentials in each address masked."""
    return _IN_TEXT.sub(rf"\g<scheme>{MASK}@", text)


def masked_form(given: Any) -> Any:
    """Return the description of an endpoint, or data with one in it, with credentials masked for display or a copy."""
    return _masked(given, "")


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        # All headers are masked: any of them can hold credentials. Names stay, references to secrets too.
        inside = "header password" if name == "headers" else ""
        return {key: _masked(each, inside or str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, name) for each in value]
    if isinstance(value, Secret):
        return MASK
    if not isinstance(value, str) or _is_reference(value):
        return value
    return MASK if "password" in name.lower() else masked_text(value)


def _is_reference(value: str) -> bool:
    return value.startswith(("env:", "file:", "secret:"))


async def _resolve(secret: Secret, secrets: SecretSource | None) -> Secret:
    text = secret.reveal()
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("env", "file", "secret", "plain"):
        return secret
    if kind == "plain":
        return Secret(name)
    try:
        if kind == "env":
            return Secret(os.environ[name])
        if kind == "file":
            return Secret((await asyncio.to_thread(Path(name).read_text)).rstrip("\r\n"))
        if secrets is None:
            raise InvalidEndpoint(f"{text} names a secret, but this runner was given no source of secrets")
        found = secrets(name)
        return Secret(await found if inspect.isawaitable(found) else found)
    except KeyError:
        raise InvalidEndpoint(f"{text} names a secret that is not there") from None
    except OSError as error:
        raise InvalidEndpoint(f"{text} names a secret that cannot be read: {error.strerror}") from None


def _split(url: Any, what: str, schemes: tuple[str, ...]) -> tuple[str, str | None, Secret | None]:
    if not isinstance(url, str):
        raise InvalidEndpoint(f"{what} lacks a url")
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, parts.hostname
    except ValueError:
        raise InvalidEndpoint(f"{what} has an invalid url") from None
    if parts.scheme not in schemes or not host:
        raise InvalidEndpoint(f"{what} has an invalid url: it must begin with {' or '.join(schemes)}://, then a host")
    if parts.query or parts.fragment:
        raise InvalidEndpoint(f"{what} has an invalid url: a database's address has no query")
    host = f"[{host}]" if ":" in host else host
    shown_port = "" if port is None or port == _PORTS.get(parts.scheme) else f":{port}"
    path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else Secret(unquote(parts.password))
    return f"{parts.scheme}://{host}{shown_port}{path}", user, password


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _basic(auth: Any, what: str) -> tuple[str | None, Secret | None]:
    if auth is None or auth == {}:
        return None, None
    basic = auth.get("basic") if isinstance(auth, Mapping) else None
    if not isinstance(basic, Mapping):
        raise InvalidEndpoint(f"{what}.auth must be an object with basic: {{username, password}}")
    fields = _strings(basic, f"{what}.auth.basic")
    if set(fields) != {"username", "password"}:
        raise InvalidEndpoint(f"{what}.auth.basic must have username and password")
    return fields["username"], Secret(fields["password"])


def _strings(form: Any, what: str) -> dict[str, str]:
    if form is None:
        return {}
    if not isinstance(form, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in form.items()
    ):
        raise InvalidEndpoint(f"{what} must be an object of texts")
    if any(letter in text for item in form.items() for text in item for letter in "\r\n\0"):
        raise InvalidEndpoint(f"{what} has a line break in it")
    return dict(form)


def _proxy(url: str | None, what: str) -> Proxy | None:
    if not url:
        return None
    return Proxy(*_split(url, f"{what}.proxy", _PROXIES))


def _tls(form: Any, what: str) -> Tls:
    if form is None:
        return Tls()
    known = {"ca_file": str, "cert_file": str, "key_file": str, "key_password": str, "verify": bool}
    if not isinstance(form, Mapping) or not all(
        name in known and isinstance(value, known[name]) for name, value in form.items()
    ):
        raise InvalidEndpoint(f"{what}.tls must be an object with some of {', '.join(known)}")
    values = dict(form)
    if "key_password" in values:
        values["key_password"] = Secret(values["key_password"])
    return Tls(**values)
