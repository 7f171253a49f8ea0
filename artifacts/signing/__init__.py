"""Signatures of bundles: Ed25519 keys, the member `manifest.sig`, and the keys that a reader trusts.

`artifacts/sign.py` signs a finished bundle. `cryptography` is imported only when a key is used.
"""
