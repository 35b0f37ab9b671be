"""Every error that claw raises on purpose, with the exit code that the shell sees.

    ClawError
    ├── UsageError (ValueError)       2   flags, --where, TOML
    │   ├── WhereError                    the SQL expression
    │   └── ConfigError                   configuration keys and values
    ├── DataError (ValueError)        3   the input breaks the contract
    │   ├── SchemaError                   a column is missing or of another type
    │   ├── LogFormatError                no known log format fits
    │   ├── TokenizerMismatchError        token ids of another tokenizer
    │   ├── VerifyError                   a file is not what its manifest says
    │   └── GateError                     the data cannot train this objective
    ├── StoreError (OSError)          4   missing, unreadable, exists, disk full
    │   ├── NotFoundError
    │   ├── OutputExistsError
    │   └── ConflictError                 another run wrote to the same table first
    ├── SetupError (RuntimeError)     5   an extra or a device is missing
    │   └── MissingExtraError
    └── TrainingError (RuntimeError)  6   training cannot go on
        └── NoSignalError                 every advantage is zero

The library raises; only cli/app.py catches. A message says what is wrong and where, the hint what
to do next. The first argument is the message, so that errors survive pickling between processes.
"""

from __future__ import annotations


class ClawError(Exception):
    """The base of all errors on purpose: a message, and a hint on what to do next."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, hint: str | None = None, where: str | None = None) -> None:
        """Keep the message (what and where), the hint (what next) and the place it speaks of."""
        super().__init__(message, hint, where)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        """Join message and hint into the sentence that a person reads."""
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(ClawError, ValueError):
    """A flag, an expression or a configuration value is wrong."""

    exit_code = 2
    code = "usage"


class WhereError(UsageError):
    """A --where expression is unknown, not boolean, or runs too long."""

    code = "where"


class ConfigError(UsageError):
    """A configuration key or value is not one that exists."""

    code = "config"


class DataError(ClawError, ValueError):
    """The input breaks the contract that the verb needs."""

    exit_code = 3
    code = "data"


class SchemaError(DataError):
    """A column is missing or has another type."""

    code = "schema"


class LogFormatError(DataError):
    """No known log format fits a file."""

    code = "log_format"


class TokenizerMismatchError(DataError):
    """Token ids belong to another tokenizer than the one at hand."""

    code = "tokenizer_mismatch"


class VerifyError(DataError):
    """An artefact is not what its manifest says."""

    code = "verify"


class GateError(DataError):
    """The data cannot honestly train the objective that was asked for."""

    code = "gate"


class StoreError(ClawError, OSError):
    """A location is missing, unreadable, taken, or full."""

    exit_code = 4
    code = "store"


class NotFoundError(StoreError):
    """A named input does not exist."""

    code = "not_found"


class OutputExistsError(StoreError):
    """The output is there already and --force was not given."""

    code = "output_exists"


class ConflictError(StoreError):
    """Another run wrote to a table first, so that what this one was about to write is out of date."""

    code = "conflict"


class SetupError(ClawError, RuntimeError):
    """Something that has to be installed or present is not."""

    exit_code = 5
    code = "setup"


class MissingExtraError(SetupError):
    """An optional dependency is not installed."""

    code = "missing_extra"


class TrainingError(ClawError, RuntimeError):
    """Training cannot go on."""

    exit_code = 6
    code = "training"


class NoSignalError(TrainingError):
    """Every advantage is zero, so that no gradient would follow."""

    code = "no_signal"
