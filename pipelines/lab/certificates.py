"""A throw-away certificate authority, made with the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .programs import ProgramMissing

__all__ = ["Certificates", "make_certificates"]

_AUTHORITY = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"
_SERVER = "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files.

    Attributes:
        authority: certificate of the authority, for clients to trust.
        certificate: signed by it, for localhost and 127.0.0.1.
        key: private key of that certificate.
    """

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A new authority and a certificate of it, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, extensions in (("authority", _AUTHORITY), ("server", _SERVER)):
        folder.joinpath(f"{name}.cnf").write_text(extensions)
        request = ("-subj", f"/CN=hotplate test {name}", "-out", f"{name}.csr")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(folder, "req", "-new", *curve, "-keyout", f"{name}.key", *request)
    made = ("-days", "2", "-sha256")
    _openssl(
        folder, "x509", "-req", "-in", "authority.csr", "-signkey", "authority.key",
        "-extfile", "authority.cnf", "-out", "authority.pem", *made,
    )  # fmt: skip
    _openssl(
        folder, "x509", "-req", "-in", "server.csr", "-CA", "authority.pem",
        "-CAkey", "authority.key", "-set_serial", "2", "-extfile", "server.cnf",
        "-out", "server.pem", *made,
    )  # fmt: skip
    return Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")


def _openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ProgramMissing("the openssl program is not here")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)
