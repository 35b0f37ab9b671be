"""Read JSON objects in one pass, whatever keys they have.

A request that repeats a long history is read once, its messages left as raw JSON; what has no
column is still at hand. So the reader is a typed decoder that refuses unknown keys, and learns
them when it meets them: a log uses the same few keys in every record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

_MOST_KEYS = 256
_SPELT = "\x7f"
"""What keys begin with that are spelt in hex digits, because no field can have their name."""
_NO_FIELD = re.compile(rf'[\x00-\x1f"\\]|^{_SPELT}')
"""What the name of a field cannot hold, and a key of JSON can."""
_Value = TypeVar("_Value")


class Layer:
    """A decoder of objects with some declared keys and any others.

    Args:
        **fields: type of each declared key; a Layer is an object (or null, or text) of its own.

    Example:
        >>> layer = Layer(messages=list[msgspec.Raw], model=Any)
        >>> found = layer.read(b'{"messages": [{"a": 1}], "seed": 7}')
        >>> bytes(found.messages[0]), found.model, layer.rest(found)
        (b'{"a": 1}', None, {'seed': 7})
    """

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._learned: dict[str, str] = {}
        self._build()

    def read(self, raw: bytes | str | msgspec.Raw) -> Any:
        """Decode one object.

        Returns:
            A struct with an attribute per declared key; null where it is null or missing.

        Raises:
            msgspec.DecodeError: it is no JSON.
            msgspec.ValidationError: it is no object, or a declared key has another type.
        """
        is_spelt = False
        while True:
            try:
                return self._decode(raw)
            except msgspec.ValidationError:
                if not is_spelt and (spelt := self._spell(raw)) is not None:
                    raw, is_spelt = spelt, True
                elif not self._learn(raw):
                    _check_values(raw)
                    raise

    def rest(self, found: msgspec.Struct) -> dict[str, Any]:
        """Collect what stood under keys that are not declared; nulls left out."""
        return {
            _key_of(name): value
            for attribute, name in self._learned.items()
            if (value := getattr(found, attribute, None)) is not None
        }

    def _build(self) -> None:
        fields = [
            (name, (kind._struct | str | None) if isinstance(kind, Layer) else kind, None)
            for name, kind in self._fields.items()
        ]
        fields += [(attribute, Any, None) for attribute in self._learned]
        # attributes of learned keys are numbered: a key need not be an identifier
        self._struct = msgspec.defstruct(
            "Object", fields, rename=self._learned or None, forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(self._struct).decode

    def _spell(self, raw: Any) -> bytes | None:
        """Spell keys that no field can have as a name, of its layers too; None = it has none."""
        try:
            values = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            return None
        found = {_name_of(key): value for key, value in values.items()}
        is_new = found.keys() != values.keys()
        for name, kind in self._fields.items():
            if isinstance(kind, Layer) and name in found:
                below = kind._spell(found[name])
                if below is not None:
                    found[name], is_new = msgspec.Raw(below), True
        return msgspec.json.encode(found) if is_new else None

    def _learn(self, raw: Any) -> bool:
        """Take in the keys of one object and of its layers; False where there is nothing new."""
        try:
            values = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            return False
        layers = [
            (kind, values[name])
            for name, kind in self._fields.items()
            if isinstance(kind, Layer) and name in values
        ]
        deeper = [layer._learn(value) for layer, value in layers]
        known = {*self._fields, *self._learned.values()}
        new = [key for key in values if key not in known]
        if new and len(self._learned) + len(new) > _MOST_KEYS:
            # keys that are data themselves, such as ids: only those of this object are kept
            self._learned = {}
            new = [key for key in values if key not in self._fields]
        for key in new:
            self._learned[f"key_{len(self._learned)}_"] = key
        if new or any(deeper):
            self._build()
        return bool(new) or any(deeper)


def _name_of(key: str) -> str:
    if not _NO_FIELD.search(key):
        return key
    return _SPELT + key.encode(errors="surrogatepass").hex()


def _key_of(name: str) -> str:
    if not name.startswith(_SPELT):
        return name
    return bytes.fromhex(name.removeprefix(_SPELT)).decode(errors="surrogatepass")


def _check_values(raw: bytes | str | msgspec.Raw) -> None:
    """Raise a DecodeError where values are what Python writes and JSON does not allow."""
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        # numbers out of range are told as if they were of a wrong type
        raise msgspec.DecodeError(str(error)) from error


class Memo(Generic[_Value]):
    """Makes a value from raw JSON once per distinct text; logs repeat tools in every request."""

    def __init__(self, make: Callable[[bytes], _Value], most: int = 4096) -> None:
        self._make, self._most = make, most
        self._values: dict[bytes, _Value] = {}

    def __call__(self, raw: bytes | msgspec.Raw) -> _Value:
        """Return the value of one text."""
        key = xxhash.xxh3_128_digest(raw)
        if (value := self._values.get(key, self)) is self:
            if len(self._values) >= self._most:
                self._values.clear()
            value = self._values[key] = self._make(bytes(raw))
        return value  # type: ignore[return-value]
