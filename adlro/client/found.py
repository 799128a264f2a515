"""The credentials of a client that was given none: from the environment, else of this user's running suite."""

from __future__ import annotations

from dataclasses import replace

from adlro.client.endpoints import Endpoints
from adlro.errors import InvalidInput
from adlro.kit.credentials import TOKEN_ENV, Credentials
from adlro.kit.identity import read_token
from adlro.kit.running_suites import running_suite


def found_credentials(endpoints: Endpoints) -> Credentials:
    """The credentials that the environment names; without a token there, with the token of this user's running suite.

    A found token is sent only to that suite's addresses, and only while processes of this user listen there.

    Raises:
        InvalidInput: a file that the environment names can't be read.
    """
    shown = Credentials.from_environment()
    if shown.token:
        return shown
    suite = running_suite(endpoints.ingest)
    if suite is None or not suite.token_file:
        return shown
    try:
        token = read_token(suite.token_file, TOKEN_ENV)
    except InvalidInput:  # it was removed meanwhile; the service's refusal names the way out
        return shown
    return replace(shown, token=token, only_for=suite.addresses, own_user=True)
