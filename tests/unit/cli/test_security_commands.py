"""`adlro certs`, `adlro token`, and the options by which the command shows them."""

from __future__ import annotations

import builtins
import datetime
import hashlib
import ipaddress
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from adlro.cli import certs
from adlro.cli.certs import make_certificates
from adlro.errors import PermissionDenied, Unauthenticated
from adlro.kit.identity import Role, UsersFile, read_token
from tests.unit.client.fake_suite import FakeSuite

NAMES = ("ingest", "decompose", "orchestrator", "simcluster", "web", "notify", "client")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def alternatives(made: x509.Certificate) -> x509.SubjectAlternativeName:
    return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_certs_makes_an_authority_and_a_certificate_for_each(adlro: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "certs"
    result = adlro("certs", "--out", str(out), "--host", "gpu.example.org", "--host", "10.1.2.3", "--days", "30")
    assert result.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}.{kind}" for name in ("ca", *NAMES) for kind in ("pem", "key")
    )
    authority = certificate(out / "ca.pem")
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
    now = datetime.datetime.now(datetime.UTC)
    for name in NAMES:
        made = certificate(out / f"{name}.pem")
        made.verify_directly_issued_by(authority)
        assert datetime.timedelta(days=29) < made.not_valid_after_utc - now <= datetime.timedelta(days=30)
        assert made.not_valid_before_utc < now
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        usages = set(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        server = set() if name == "client" else {ExtendedKeyUsageOID.SERVER_AUTH}
        assert usages == {ExtendedKeyUsageOID.CLIENT_AUTH, *server}
    names = alternatives(certificate(out / "ingest.pem"))
    assert names.get_values_for_type(x509.DNSName) == ["ingest", "localhost", "gpu.example.org"]
    addresses = [ipaddress.ip_address(each) for each in ("127.0.0.1", "::1", "10.1.2.3")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    for path in out.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_certs_replaces_nothing_unless_told_to(adlro: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("precious")
    result = adlro("certs", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "has ca.key already; choose another --out, or replace them with --force" in result.stderr.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["ca.key"]
    assert (tmp_path / "ca.key").read_text() == "precious"
    assert adlro("certs", "--out", str(tmp_path), "--force").exit_code == 0
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_certs_refuses_what_is_no_host(adlro: Callable[..., Any], tmp_path: Path) -> None:
    result = adlro("certs", "--out", str(tmp_path / "certs"), "--host", "https://x/")
    assert result.exit_code == 2
    assert "'https://x/' is no name and no IP address" in result.stderr
    assert not (tmp_path / "certs").exists()


def test_certs_says_what_to_install(adlro: Callable[..., Any], tmp_path: Path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "cryptography":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    result = adlro("certs", "--out", str(tmp_path / "certs"))
    assert result.exit_code == 2
    assert "pip install '.[certs]'" in result.stderr
    assert not (tmp_path / "certs").exists()


def test_a_key_is_never_readable_by_others_not_even_while_it_is_written(tmp_path: Path, monkeypatch) -> None:
    modes: list[int] = []
    real = certs._replace

    def watched(path: Path, content: bytes, mode: int) -> None:
        (path.parent / (path.name + ".new")).write_text("left behind")  # with the modes of this process
        real(path, content, mode)
        modes.append(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr(certs, "_replace", watched)
    make_certificates(tmp_path)
    assert modes == [0o600, 0o644] * 8


# ---- tokens


def test_token_is_shown_once_and_known_by_its_line(adlro: Callable[..., Any], tmp_path: Path) -> None:
    users = tmp_path / "users"
    made = [
        adlro("token", "ada", "--role", "submitter", "--role", "reader", "--users-file", str(users)).stdout.strip()
        for _ in range(2)
    ]
    assert made[0] != made[1]
    assert made[0].startswith("ada.")
    text = users.read_text()
    assert len(text.splitlines()) == 2
    assert not [token for token in made if token.rpartition(".")[2] in text]
    assert hashlib.sha256(made[0].encode()).hexdigest() in text
    known = UsersFile(str(users), "KEY")
    for token in made:
        caller = known.caller(token)
        assert caller is not None
        assert caller.roles == frozenset({Role.SUBMITTER, Role.READER})


def test_a_line_is_added_to_the_file_that_is_there(adlro: Callable[..., Any], tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("# staff\nbob reader sha256:" + "0" * 64)  # without an end of the line
    before = users.stat().st_ino
    assert adlro("token", "ada", "-r", "reader", "--users-file", str(users)).exit_code == 0
    assert users.stat().st_ino == before  # a mounted file stays the mounted one
    assert [line.split()[0] for line in users.read_text().splitlines()] == ["#", "bob", "ada"]


def test_token_goes_to_a_file_of_ones_own(adlro: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "token"
    result = adlro("token", "ops", "-r", "operator", "--out", str(out))
    assert result.exit_code == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    token = read_token(str(out), "KEY")
    assert token not in result.output
    assert hashlib.sha256(token.encode()).hexdigest() in result.stderr.replace("\n", "")
    again = adlro("token", "ops", "-r", "operator", "--out", str(out))
    assert (again.exit_code, read_token(str(out), "KEY")) == (1, token)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("a b", "-r", "reader"), 1, "'a b' is no name for a user"),
        (("ada",), 2, "--role"),
        (("ada", "-r", "king"), 2, "king"),
    ],
)
def test_token_refuses(adlro: Callable[..., Any], arguments: tuple[str, ...], code: int, problem: str) -> None:
    result = adlro("token", *arguments)
    assert result.exit_code == code
    assert problem in result.stderr
    assert result.stdout == ""


def test_a_spoiled_users_file_is_not_added_to(adlro: Callable[..., Any], tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("what is this\n")
    result = adlro("token", "ada", "-r", "reader", "--users-file", str(users), "--out", str(tmp_path / "token"))
    assert result.exit_code == 1
    assert users.read_text() == "what is this\n"
    assert not (tmp_path / "token").exists()


# ---- what the command shows


def test_a_job_is_submitted_as_the_user_of_the_token(adlro: Callable[..., Any], tmp_path: Path) -> None:
    token = tmp_path / "token"
    adlro("token", "grace", "-r", "submitter", "--out", str(token))
    result = adlro("--token-file", str(token), "submit", "--type", "ml", "-o", "json")
    assert result.exit_code == 0, result.output
    assert '"user": "grace"' in result.stdout


def test_a_token_file_that_is_not_there_is_wrong_usage(adlro: Callable[..., Any], tmp_path: Path) -> None:
    result = adlro("--token-file", str(tmp_path / "absent"), "queue")
    assert result.exit_code == 2
    assert "ADLRO_TOKEN_FILE: can't read the token in" in result.stderr


def test_gpus_does_not_call_idle_what_the_caller_may_not_see(adlro: Callable[..., Any], suite: FakeSuite) -> None:
    suite.fail("GetTelemetry", PermissionDenied("ada is submitter; GetTelemetry needs the role reader"))
    result = adlro("gpus")
    assert result.exit_code == 1
    assert "ada is submitter" in result.stderr
    assert "idle" not in result.output


def test_a_caller_without_a_token_learns_where_his_own_is_found(suite: FakeSuite, adlro: Callable[..., Any]) -> None:
    suite.fail("ListJobs", Unauthenticated("this service needs a token"))
    result = adlro("queue")
    assert result.exit_code == 1
    assert "127.0.0.1:PORT" in result.stderr


def test_whoami_tells_user_and_roles(adlro, suite):
    assert adlro("whoami").stdout == "ada (submitter, reader)\n"
    told = json.loads(adlro("whoami", "-o", "json").stdout)
    assert told == {"user": "ada", "roles": ["submitter", "reader"], "tokens_needed": True}
    suite.tokens_needed = False
    assert "No tokens are needed here" in adlro("whoami").stdout
