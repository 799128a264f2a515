"""`adlro certs`: a certificate authority for development, and certificates for each service and for clients.

Not for production: the authority's key is stored beside the certificates. There, let your own authority issue them.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.shell import EXIT_USAGE, say, stdout
from adlro.errors import Conflict, InvalidInput, with_extra
from adlro.terminal import escape

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SERVICES = ("ingest", "decompose", "orchestrator", "simcluster", "web", "notify")
CLIENT = "client"
CA_DAYS = 365
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
# The clocks of machines differ.
_BEFORE = datetime.timedelta(minutes=5)


def certs(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write to.", file_okay=False)] = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Another name or IP address of the services, for clients; repeatable.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=825, help="Validity of the services' and the client's certificates.")
    ] = 90,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files, the authority included.")] = False,
) -> None:
    """Make a certificate authority for development, and certificates for each service and a client.

    Each certificate is valid for its service's name (as in compose), localhost, 127.0.0.1 and ::1. A running service
    reads new certificates by itself.
    """
    try:
        made = make_certificates(out, hosts=host or (), days=days, force=force)
    except (Conflict, InvalidInput) as error:
        say(f"[bold red]error:[/] {escape(error.message)}")
        raise typer.Exit(EXIT_USAGE) from None
    for path in made:
        stdout().print(escape(str(path)))
    say(
        f"Services: ADLRO_TLS_CERT_FILE={out}/<service>.pem ADLRO_TLS_KEY_FILE={out}/<service>.key "
        f"ADLRO_TLS_CA_FILE={out}/ca.pem; clients: ADLRO_TLS_CA_FILE={out}/ca.pem. "
        "ca.key can sign any certificate: don't give it to services."
    )


def make_certificates(
    out: Path,
    *,
    hosts: tuple[str, ...] | list[str] = (),
    days: int = 90,
    force: bool = False,
    now: datetime.datetime | None = None,
) -> list[Path]:
    """Writes ca.pem, ca.key, and `<name>.pem`, `<name>.key` for each service and the client; keys with mode 0600.

    Args:
        out: the directory; created if it is missing.
        hosts: further names and addresses for every service's certificate.
        days: validity of the certificates; the authority's is a year, or as long as theirs.
        force: replaces files.
        now: start of the validity.

    Raises:
        Conflict: there are files already, and `force` is not set.
        InvalidInput: a host is no name or address, or the package `cryptography` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise InvalidInput(f"`adlro certs` needs the package cryptography; install it {with_extra('certs')}") from None
    names = (*SERVICES, CLIENT)
    extra = [_subject(host) for host in hosts]
    files = [out / f"{name}.{kind}" for name in ("ca", *names) for kind in ("pem", "key")]
    there = [path.name for path in files if path.exists()]
    if there and not force:
        raise Conflict(f"{out} has {', '.join(there)} already; choose another --out, or replace them with --force")
    out.mkdir(parents=True, exist_ok=True)
    began = now or datetime.datetime.now(datetime.UTC)

    def named(common_name: str) -> x509.Name:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ADLRO development"),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )

    def begin(subject: x509.Name, key: EllipticCurvePrivateKey, lifetime_days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(named("ADLRO development CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(began - _BEFORE)
            .not_valid_after(began + datetime.timedelta(days=lifetime_days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    def write(name: str, key: EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        pem = serialization.Encoding.PEM
        # The key first: a service that reads in between finds a pair that doesn't match, and keeps its previous one.
        _replace(
            out / f"{name}.key",
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            0o600,
        )
        _replace(out / f"{name}.pem", certificate.public_bytes(pem), 0o644)

    ca_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        begin(named("ADLRO development CA"), ca_key, max(CA_DAYS, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(x509, signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    write("ca", ca_key, authority)
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        # A service also calls others.
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = begin(named(name), key, days)
        if name != CLIENT:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
            local = [_subject(each) for each in (name, "localhost", "127.0.0.1", "::1")]
            alternatives = [
                x509.DNSName(each) if isinstance(each, str) else x509.IPAddress(each)
                for each in dict.fromkeys([*local, *extra])
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(x509, signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        write(name, key, certificate)
    return files


def _key_usage(x509: Any, *, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(host: str) -> str | ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidInput(f"--host: {host!r} is no name and no IP address", field="host") from None
        return host


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Writes a file in one step, at no time with more permissions than `mode`."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)
