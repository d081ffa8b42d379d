"""Whom a device's owner trusts, from its node configuration.

``identity-key`` names a file with the device's private Ed25519 key (64 hexadecimal digits), and
``trusted-peers`` one with the public keys of the devices that it masks towards, one in a line,
``#`` begins a comment. Both are the device owner's files: nothing of them comes from the server.
"""

import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fl_app.errors import ConfigError
from strategies.niss.key_memory import KEY_BYTES, NOBODY_KNOWN, DeviceTrust

IDENTITY_KEY, TRUSTED_KEY = "identity-key", "trusted-peers"


def read_device_trust(node_config: Mapping[str, object]) -> DeviceTrust:
    """Return who a device is to others and whom it trusts.

    Raises
    ------
    ConfigError
        If a key is there and names no file, or a file that is named cannot be read, is not what it
        should be, or if others may read the private key.
    """
    identity, trusted = (_read_name(node_config, key) for key in (IDENTITY_KEY, TRUSTED_KEY))
    if not identity and not trusted:
        return NOBODY_KNOWN
    if trusted and not identity:
        raise ConfigError(
            IDENTITY_KEY, None, f"a file with the device's own key beside {TRUSTED_KEY}"
        )
    return _read(identity, trusted)


def _read_name(node_config: Mapping[str, object], key: str) -> str:
    """Return the file that a key names; empty without the key. Nothing else means nobody."""
    if key not in node_config:
        return ""
    value = node_config[key]
    if not isinstance(value, str) or not value:
        raise ConfigError(key, value, "a file's path, or no such key")
    return value


@lru_cache(maxsize=64)
def _read(identity: str, trusted: str) -> DeviceTrust:
    keys = _read_keys(IDENTITY_KEY, identity)
    if len(keys) != 1:
        raise ConfigError(IDENTITY_KEY, identity, "a file with one key")
    if Path(identity).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            IDENTITY_KEY, identity, "a file that its owner alone may read (chmod 600)"
        )
    peers = frozenset(_read_keys(TRUSTED_KEY, trusted)) if trusted else None
    return DeviceTrust(keys[0], peers)


def _read_keys(name: str, file: str) -> list[bytes]:
    allowed = f"a file with keys of {2 * KEY_BYTES} hexadecimal digits, one in a line"
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        words = [line.partition("#")[0].strip() for line in lines]
        keys = [bytes.fromhex(word) for word in words if word]
    except (OSError, ValueError):
        raise ConfigError(name, file, allowed) from None
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ConfigError(name, file, allowed)
    return keys
