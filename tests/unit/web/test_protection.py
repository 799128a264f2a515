"""Hosts, origins and headers."""

from __future__ import annotations

import pytest

from adlro.services.web.protection import Hosts, refusal_of_post, same_origin, security_headers


@pytest.mark.parametrize(
    "host",
    [
        "localhost:7705",
        "127.0.0.1:7705",
        "[::1]:7705",
        "LOCALHOST",
        "localhost:8080",
        "page.example.org",
        "10.1.2.3:7705",
    ],
)
def test_names_of_the_page_are_allowed_at_any_port(host):
    assert Hosts("10.1.2.3:7705", ["Page.example.org"]).allows(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7705", "localhost:x", "a@localhost"),
        *("localhost/x", "localhost?x", "localhost#x", "[::1", "0.0.0.0:7705", "10.1.2.4:7705", "localhost:99999"),
    ],
)
def test_other_names_are_not(host):
    assert not Hosts("10.1.2.3:7705", ["page.example.org"]).allows(host)


def test_listening_everywhere_allows_no_name_by_itself():
    assert not Hosts("0.0.0.0:7705", []).allows("0.0.0.0:7705")
    assert Hosts("0.0.0.0:7705", ["gpu.example:443"]).allows("gpu.example:443")
    assert not Hosts("0.0.0.0:7705", ["gpu.example:443"]).allows("gpu.example:80")


def test_the_policy_allows_the_page_itself_and_nothing_else():
    headers = security_headers("page.example:7705", tls=True)
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "font-src": "'self'",
        "connect-src": "'self' wss://page.example:7705",
        "frame-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


GOOD = {"host": "localhost:7705", "origin": "http://localhost:7705", "x-adlro": "1", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"sec-fetch-site": None}, None),
        ({"origin": None}, "Origin"),
        ({"origin": "null"}, "Origin"),
        ({"origin": "http://evil.example"}, "Origin"),
        ({"origin": "http://localhost:7706"}, "Origin"),
        ({"origin": "file://localhost:7705"}, "Origin"),
        ({"origin": "http://["}, "Origin"),
        ({"sec-fetch-site": "cross-site"}, "another site"),
        ({"sec-fetch-site": "same-site"}, "another site"),
        ({"x-adlro": None}, "X-ADLRO"),
        ({"x-adlro": "0"}, "X-ADLRO"),
    ],
)
def test_a_request_that_changes_something_comes_from_this_page(changed, says):
    headers = {name: value for name, value in (GOOD | changed).items() if value is not None}
    refused = refusal_of_post(headers)
    assert (refused is None) == (says is None)
    assert (says or "") in (refused or "")


def test_an_empty_host_is_no_origin():
    assert not same_origin({"host": "", "origin": "http://"})
