"""Defines the types of stored feature rows."""

from typing import Literal

FeatureDtype = Literal["float16", "float32", "int8"]
