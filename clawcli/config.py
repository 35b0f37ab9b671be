"""Build a verb's frozen configuration from defaults, a TOML file, --set pairs and flags.

Later sources win: default < file < --set < flag. Unknown keys are refused with the nearest name.
The TOML file itself is read in cli/.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from clawcli.errors import ConfigError

T = TypeVar("T")


def resolve(
    kind: type[T],
    flags: Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    file: Mapping[str, Any] | None = None,
) -> T:
    """Build one configuration.

    Args:
        kind: a frozen dataclass; nested dataclasses are tables of the file and dotted keys of
            --set.
        flags: field -> value of flags that were given; None = not given.
        sets: "key=value" with dotted keys; a value is JSON, else taken as a string.
        file: the parsed TOML file.

    Raises:
        ConfigError: a key does not exist or a value does not fit its type.
    """
    values = _nested(file or {})
    for pair in sets:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair} has no '='.", "Write --set key=value.")
        _put(values, key.strip(), _value(text))
    for key, value in flags.items():
        if value is not None:
            _put(values, key, value)
    _check_keys(kind, values)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"The configuration is wrong: {error}.", "Correct the value.") from error


def to_dict(config: Any) -> dict[str, Any]:
    """Turn a configuration into plain JSON values, as manifests store it."""
    return msgspec.to_builtins(config)


def _nested(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _nested(v) if isinstance(v, Mapping) else v for k, v in table.items()}


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{table} in {key} is a value, not a table.", "Correct the key.")
    values[last] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_keys(kind: type, values: Mapping[str, Any], prefix: str = "") -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    types = msgspec.inspect.type_info(kind)
    nested = {
        field.name: field.type.cls
        for field in getattr(types, "fields", ())
        if isinstance(field.type, msgspec.inspect.DataclassType)
    }
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"Did you mean {prefix}{near[0]}?" if near else f"Keys: {', '.join(fields)}."
            raise ConfigError(f"There is no setting {prefix}{key}.", hint)
        if key in nested and isinstance(value, Mapping):
            _check_keys(nested[key], value, f"{prefix}{key}.")
