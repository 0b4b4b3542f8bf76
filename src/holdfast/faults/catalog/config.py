"""CONFIG_: mistakes in the configuration. Holdfast never guesses a value, so the program does not start."""

from __future__ import annotations

from holdfast.faults.catalog.entry import REJECTED, Traits, entry
from holdfast.faults.enums import Kind, NextActor, Scope, Severity

_WRONG: Traits = {
    **REJECTED,
    "kind": Kind.PERMANENT,
    "severity": Severity.ERROR,
    "scope": Scope.PROCESS,
    "next_actor": NextActor.OPERATOR,
    "http_status": 500,
    "exit_code": 2,
    "classed": "Validation/ConfigSchemaViolation",
}

ENTRIES = (
    # The program exits with 2 before any work, because a guessed value would fail later in another place.
    entry(
        "CONFIG_INVALID",
        _WRONG,
        "Invalid configuration[ at {path}][: expected {expected}, got {received}]",
        "The program is set up wrongly and did not start.",
        "Fix the named setting; `holdfast doctor` checks the whole configuration",
        aliases=("Validation/ConfigSchemaViolation",),
    ),
    entry(
        "CONFIG_SHAPE_INVALID",
        _WRONG,
        "Definition does not have the required shape[ at {path}][: expected {expected}, got {received}]",
        "A part of the program is described wrongly and was not loaded.",
        "Fix the field at the named path",
        aliases=("Validation/ShapeInvalid",),
        classed="Validation/ShapeInvalid",
    ),
    entry(
        "CONFIG_CONTRACT_MISMATCH",
        _WRONG,
        "[{name} speaks contract version {received}, this Holdfast speaks {expected}|Contract versions differ]",
        "An extension does not fit this version of the program.",
        "Update the older of the two",
        aliases=("Validation/ContractVersionMismatch",),
        classed="Validation/ContractVersionMismatch",
    ),
    entry(
        "CONFIG_TIMEOUT_INVALID",
        _WRONG,
        "Timeout must be a number above 0[, got {received}]",
        "A time limit is set wrongly.",
        "Give a number of seconds above 0, or `none` for no limit",
        aliases=("Validation/TimeoutMsInvalid",),
        classed="Validation/TimeoutMsInvalid",
    ),
    entry(
        "CONFIG_OPTION_INVALID",
        _WRONG,
        "[{path}: expected {expected}, got {received}|An option is not valid]",
        "The program was called with an option that is not valid.",
        "Fix the named argument",
        next_actor=NextActor.DEVELOPER,
    ),
    # A rule with a mistyped code would silently never match.
    entry(
        "CONFIG_CODE_UNKNOWN",
        _WRONG,
        "There is no [code {received}|such code]",
        "A rule names an error that does not exist.",
        "Use a code that `holdfast codes` lists",
        next_actor=NextActor.DEVELOPER,
        exit_code=3,
    ),
)
