"""Failures at a bridge, for the codes that only it has."""

from __future__ import annotations

from faults_failures import raised_by

from holdfast.bridge.access.tokens import Tokens
from holdfast.faults import Fault


def token_is_wrong() -> Fault:
    return raised_by(lambda: Tokens().identify("a guess", peer="192.0.2.7"))


def token_is_of_another_kind() -> Fault:
    tokens = Tokens()
    holder = tokens.identify(tokens.create("CI", kind="hook").text, peer="192.0.2.7")
    return raised_by(lambda: holder.require("device"))


def too_many_tokens_were_wrong() -> Fault:
    tokens = Tokens()
    faults = [raised_by(lambda: tokens.identify("a guess", peer="192.0.2.7")) for _ in range(12)]
    return faults[-1]
