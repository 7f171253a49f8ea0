"""Signatures of bundles: Ed25519 keys, the member `manifest.sig`, and the keys that a reader trusts."""
