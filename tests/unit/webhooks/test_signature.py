"""Signatures: ours are those of Standard Webhooks, and what was changed, is old, or is another's is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from adlro.errors import InvalidInput
from adlro.webhooks import BadSignature, verify
from adlro.webhooks.signature import read_secrets, secret_bytes, signed_headers

SECRET = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(range(1, 33))).decode()
BODY = b'{"event":"test"}'
NOW_S = 1_700_000_000


def headers(*secrets: str) -> dict[str, str]:
    return signed_headers([secret_bytes(each) for each in secrets], "id-1", NOW_S, BODY)


def test_the_example_of_the_specification() -> None:
    # https://github.com/standard-webhooks/standard-webhooks: its libraries' test vector.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    made = signed_headers([secret_bytes(secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body)
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify(made, body, secret, now_unix_s=1_614_265_330) == {"test": 2432232314}


def test_a_message_of_ours_is_verified() -> None:
    assert verify(headers(SECRET), BODY, SECRET, now_unix_s=NOW_S + 10) == {"event": "test"}
    upper = {name.upper(): value for name, value in headers(SECRET).items()}
    assert verify(upper, BODY, f"whsec_{SECRET}\n", now_unix_s=NOW_S) == {"event": "test"}


def test_with_two_secrets_both_receivers_know_it() -> None:
    made = headers(OTHER, SECRET)
    assert verify(made, BODY, SECRET, now_unix_s=NOW_S) == verify(made, BODY, OTHER, now_unix_s=NOW_S)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_changed_or_missing_header_is_refused(name: str) -> None:
    made = headers(SECRET)
    with pytest.raises(BadSignature):
        verify(
            {**made, name: made[name][:-1] + ("0" if made[name][-1] != "0" else "1")}, BODY, SECRET, now_unix_s=NOW_S
        )
    with pytest.raises(BadSignature, match=name):
        verify({key: value for key, value in made.items() if key != name}, BODY, SECRET, now_unix_s=NOW_S)


def test_a_changed_body_another_secret_and_an_old_message_are_refused() -> None:
    with pytest.raises(BadSignature, match="not signed"):
        verify(headers(SECRET), BODY + b" ", SECRET, now_unix_s=NOW_S)
    with pytest.raises(BadSignature, match="not signed"):
        verify(headers(SECRET), BODY, OTHER, now_unix_s=NOW_S)
    for now_s in (NOW_S + 301, NOW_S - 301):
        with pytest.raises(BadSignature, match="301 s from now"):
            verify(headers(SECRET), BODY, SECRET, now_unix_s=now_s)


def test_secrets_are_read_from_a_file_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ops.secret"
    path.write_text(f"{SECRET}\n\nwhsec_{OTHER}\n")
    assert read_secrets(path, "key") == (bytes(range(32)), bytes(range(1, 33)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("hunter2!", "not base64"),
        (base64.b64encode(b"short").decode(), "a secret of 5 bytes"),
        ("\n".join([SECRET] * 5), "more than 4 lines"),
        ("geheimnis\xe4", "ASCII"),
    ],
)
def test_what_is_no_secret_is_refused_without_being_shown(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "ops.secret"
    path.write_text(content, "latin-1")
    with pytest.raises(InvalidInput, match=said) as refused:
        read_secrets(path, "webhook[0].secret_file")
    assert refused.value.field == "webhook[0].secret_file"
    assert "openssl rand -base64 32" in refused.value.message
    assert not content or content not in refused.value.message
