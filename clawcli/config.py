"""Build a verb's frozen configuration from defaults, a TOML file, --set pairs and flags.

Later sources win: default < file < --set < flag. Unknown keys are refused with the nearest name.
The TOML file itself is read in cli/.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
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
        raise _explain(kind, values, str(error), flags) from error


def _explain(
    kind: type, values: Mapping[str, Any], problem: str, flags: Mapping[str, Any]
) -> ConfigError:
    """Turn what is wrong with a value into a sentence that names the flag and its choices."""
    if missing := re.search(r"missing required field `(\w+)`", problem):
        key, value, choices = missing[1], None, _choices(kind, missing[1])
        message = f"{_shown(key, flags)} is missing."
    else:
        place = re.search(r"`\$\.([\w.]+)", problem)
        key = place[1] if place else ""
        value = values
        for part in key.split(".") if key else ():
            value = value.get(part) if isinstance(value, Mapping) else None
        choices = _choices(kind, key)
        reason = re.sub(r" - at `.*", "", problem).rstrip(".")
        message = f"{_shown(key, flags)} {value!r} cannot be used: {reason}."
    otherwise = "Give it, or set it in --config." if missing else "Correct the value."
    hint = f"Choose one of {', '.join(choices)}." if choices else otherwise
    return ConfigError(message, hint)


def _shown(key: str, flags: Mapping[str, Any]) -> str:
    """Write a setting as it is given: as a flag where the verb has one, else with --set."""
    return f"--{key.rstrip('_').replace('_', '-')}" if key in flags else f"--set {key}"


def _choices(kind: type, key: str) -> list[str]:
    """List the values that a setting may have, where they are few."""
    field: Any = kind
    for part in key.split("."):
        known = {f.name: f.type for f in getattr(msgspec.inspect.type_info(field), "fields", ())}
        found = known.get(part)
        if isinstance(found, msgspec.inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, msgspec.inspect.NoneType))
        if isinstance(found, msgspec.inspect.EnumType):
            return [member.value for member in found.cls]
        if isinstance(found, msgspec.inspect.LiteralType):
            return [str(value) for value in found.values]
        field = getattr(found, "cls", None)
        if field is None:
            return []
    return []


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
    nested, lists = nested_kinds(kind), listed_kinds(kind)
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"Did you mean {prefix}{near[0]}?" if near else f"Keys: {', '.join(fields)}."
            raise ConfigError(f"There is no setting {prefix}{key}.", hint)
        if key in nested and isinstance(value, Mapping):
            _check_keys(nested[key], value, f"{prefix}{key}.")
        if key in lists and isinstance(value, Sequence):
            for number, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    _check_keys(lists[key], entry, f"{prefix}{key}[{number}].")


def nested_kinds(kind: type) -> dict[str, type]:
    """Find the settings that are tables of their own: name -> class."""
    fields = getattr(msgspec.inspect.type_info(kind), "fields", ())
    return {
        field.name: field.type.cls
        for field in fields
        if isinstance(field.type, msgspec.inspect.DataclassType)
    }


def listed_kinds(kind: type) -> dict[str, type]:
    """Find the settings that are lists of tables: name -> class of one."""
    fields = getattr(msgspec.inspect.type_info(kind), "fields", ())
    return {
        field.name: field.type.item_type.cls
        for field in fields
        if isinstance(field.type, msgspec.inspect.VarTupleType)
        and isinstance(field.type.item_type, msgspec.inspect.DataclassType)
    }
