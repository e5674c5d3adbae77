"""Types that feature rows are stored in."""

from typing import Literal

FeatureDtype = Literal["float16", "float32", "int8"]
