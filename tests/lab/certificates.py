"""Throw-away authorities and certificates, made by openssl; as RFC 5280 wants them, which Python checks since 3.13."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A key and its certificate, as files."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str) -> Identity:
    """A certificate authority."""
    found = Identity(folder / f"{name}.crt", folder / f"{name}.key")
    use = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    output = ("-days", "2", "-out", str(found.certificate))
    _openssl("req", "-x509", *_new_key(found), "-subj", f"/CN={name}", *use, *output)
    return found


def issue(authority: Identity, folder: Path, name: str, addresses: Sequence[str] = ("127.0.0.1",)) -> Identity:
    """A certificate for these addresses, good for servers and clients."""
    found = Identity(folder / f"{name}.crt", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    alternatives = ",".join(f"IP:{address}" for address in addresses)
    extensions.write_text(f"subjectAltName={alternatives}\nauthorityKeyIdentifier=keyid\n")
    _openssl("req", *_new_key(found), "-subj", f"/CN={name}", "-out", str(request))
    signer = ("-CA", str(authority.certificate), "-CAkey", str(authority.key), "-CAcreateserial")
    output = ("-extfile", str(extensions), "-days", "2", "-out", str(found.certificate))
    _openssl("x509", "-req", "-in", str(request), *signer, *output)
    return found


def server_context(identity: Identity, clients: Identity | None = None) -> ssl.SSLContext:
    """What a server presents, and the authority of the client certificates that it asks for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    return context


def _new_key(identity: Identity) -> tuple[str, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(identity.key)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
