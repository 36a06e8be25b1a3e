"""The key file of a job: a secret for the handshake, and the certificates by which TLS knows the job's members.

One file for all hosts of a job, readable by its owner only. The authority that signs the members' certificate is made
with it and its own key is thrown away: whoever has the file is a member, and nobody can make another one.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import stat
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.errors import ConfigError

SECRET_BYTES = 32
MEMBER_NAME = "member.paceline"
MAX_FILE_BYTES = 1 << 16
DEFAULT_DAYS = 365

_BEGIN, _END = "-----BEGIN PACELINE JOB KEY-----", "-----END PACELINE JOB KEY-----"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_CERTIFICATE_END = "-----END CERTIFICATE-----"


@dataclass(frozen=True)
class JobKey:
    """A key file that was read. Its secret is shown by no `repr`, so by no log."""

    path: Path
    secret: bytes = field(repr=False)
    authority: str = field(repr=False)

    def tls(self, *, server_side: bool) -> ssl.SSLContext:
        """TLS 1.3 in which both ends show a certificate of this job's authority, and of no other. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=self.authority)
            context.load_cert_chain(self.path)
        except OSError as error:
            raise ConfigError(f"the certificates in {self.path} cannot be used: {error.strerror or error}") from error
        if server_side:
            # no connection is ever resumed, and a ticket would be written into lanes that only read
            context.num_tickets = 0
        return context


def write_key_file(path: Path, *, days: int = DEFAULT_DAYS) -> None:
    """Make a new key file. Raises ConfigError when there is a file at `path`, or none can be written."""
    if not 1 <= days <= 36500:
        raise ConfigError(f"a key is good for 1 to 36500 days, got {days}")
    text = new_key(days=days)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; a key is never written over, because a job may be using it") from error
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def new_key(*, days: int = DEFAULT_DAYS) -> str:
    """The text of a new key file."""
    return _new_key(datetime.now(UTC), days)


def read_key_file(path: Path) -> JobKey:
    """Read a key file. Raises ConfigError when it is none, or others than its owner may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(fd))
        text = os.read(fd, MAX_FILE_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(fd)
    certificates = _certificates(text)
    secret = _secret(text)
    if secret is None or len(certificates) != 2:
        raise ConfigError(f"{path} is not a key file: make one with `paceline keys new FILE`")
    _check_date(path, certificates[0])
    return JobKey(path, secret, certificates[1])


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the key file {path} is not a regular file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"the key file {path} has mode {mode:04o}, so others can read or change it: chmod 600 {path}")
    if status.st_uid not in (os.getuid(), 0):
        raise ConfigError(f"the key file {path} belongs to user {status.st_uid}, not to {os.getuid()} who runs the job")


def _certificates(text: str) -> list[str]:
    parts = text.split(_CERTIFICATE)[1:]
    return [_CERTIFICATE + part.split(_CERTIFICATE_END)[0] + _CERTIFICATE_END + "\n" for part in parts]


def _secret(text: str) -> bytes | None:
    _, begin, rest = text.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not begin or not end:
        return None
    try:
        secret = b64decode(body.strip(), validate=True)
    except (Base64Error, ValueError):
        return None
    return secret if len(secret) == SECRET_BYTES else None


def _check_date(path: Path, certificate: str) -> None:
    try:
        read = x509.load_pem_x509_certificate(certificate.encode())
        since, until = read.not_valid_before_utc, read.not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"{path} holds a certificate that cannot be read: make a new key with `paceline keys new FILE`") from error
    now, host = datetime.now(UTC), socket.gethostname()
    if until < now:
        told = f"the key in {path} was good until {until:%Y-%m-%d}, and the clock of {host} says {now:%Y-%m-%d}"
        raise ConfigError(f"{told}: make a new one with `paceline keys new FILE`, or set the clock")
    if since > now:
        raise ConfigError(
            f"the key in {path} is good from {since:%Y-%m-%d %H:%M} UTC, and the clock of {host} says {now:%Y-%m-%d %H:%M}: set it"
        )


def _new_key(now: datetime, days: int) -> str:
    authority_key, member_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # a host whose clock is a day behind can still take part
    since, until = now - timedelta(days=1), now + timedelta(days=days)
    authority = _authority(authority_key, since, until)
    member = _member(member_key, authority, authority_key)
    private = member_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    secret = b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    pems = [certificate.public_bytes(Encoding.PEM).decode() for certificate in (member, authority)]
    return "".join([f"{_BEGIN}\n{secret}\n{_END}\n", *pems, private])


def _authority(key: ec.EllipticCurvePrivateKey, since: datetime, until: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Paceline job {secrets.token_hex(8)}")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def _member(key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, MEMBER_NAME)])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(authority.subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(authority.not_valid_before_utc).not_valid_after(authority.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(MEMBER_NAME)]), critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(identifier, critical=False).sign(signer, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
