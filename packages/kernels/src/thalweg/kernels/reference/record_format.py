"""The formats of cached rows: how many bytes a record has and where its scales lie."""

from __future__ import annotations

import enum

from thalweg.interfaces import ConfigError


class RecordFormat(enum.Enum):
    """How one cached row is written as bytes."""

    FP4_MAIN = "fp4_main"
    """e2m1 elements, one e4m3 scale per 16; each entry is [data | scales]."""
    MXFP8 = "mxfp8"
    """e4m3 elements, one power-of-two scale per 32; each entry is [data | scales]."""
    MXFP4_INDEX = "mxfp4_index"
    """e2m1 elements, one power-of-two scale per 32; a page is [data of all entries | scales of all entries]."""
    FLOAT64 = "float64"
    """The row itself, without rounding (plain mode)."""

    @property
    def is_block_split(self) -> bool:
        """Whether a page keeps all data first and all scales after them."""
        return self is RecordFormat.MXFP4_INDEX

    @property
    def group(self) -> int:
        """Elements that share a scale; 1 when there is none."""
        return {RecordFormat.FP4_MAIN: 16, RecordFormat.FLOAT64: 1}.get(self, 32)

    def data_bytes(self, width: int) -> int:
        """Bytes of the elements of a row of `width`."""
        self._check_width(width)
        if self is RecordFormat.FLOAT64:
            return 8 * width
        return width if self is RecordFormat.MXFP8 else width // 2

    def scale_bytes(self, width: int) -> int:
        """Bytes of the scales of a row of `width`."""
        self._check_width(width)
        return 0 if self is RecordFormat.FLOAT64 else width // self.group

    def record_bytes(self, width: int) -> int:
        """Bytes of one entry of `width` elements."""
        return self.data_bytes(width) + self.scale_bytes(width)

    def width(self, record_bytes: int) -> int:
        """Elements of an entry of `record_bytes`; a ConfigError if no width of this format has that many."""
        width, rest = divmod(32 * record_bytes, _BYTES_OF_32[self])
        if rest or width < 1 or width % self.group != 0:
            raise ConfigError(f"record of {record_bytes} bytes is no {self.name} record of any width")
        return width

    def _check_width(self, width: int) -> None:
        if width < 1 or width % self.group != 0:
            raise ConfigError(f"width is {width}; {self.name} needs a positive multiple of {self.group}")


_BYTES_OF_32 = {
    RecordFormat.FP4_MAIN: 18,
    RecordFormat.MXFP8: 33,
    RecordFormat.MXFP4_INDEX: 17,
    RecordFormat.FLOAT64: 256,
}
"""Bytes of 32 elements, scales included."""
_RELEASED = {288: RecordFormat.FP4_MAIN, 528: RecordFormat.MXFP8, 68: RecordFormat.MXFP4_INDEX}


def identify_format(record_bytes: int, width: int | None = None) -> RecordFormat:
    """The format of records of `record_bytes`: of that width, or, without one, of the released model.

    Raises ConfigError for anything else: 132 bytes would be two legacy index formats, 584 and 592 older models'
    records.
    """
    if width is None:
        if record_bytes not in _RELEASED:
            raise ConfigError(
                f"record of {record_bytes} bytes has no format of its own; 288 (FP4_MAIN), 528 (MXFP8) and "
                "68 (MXFP4_INDEX) have, any other needs its width or format"
            )
        return _RELEASED[record_bytes]
    for record_format, bytes_of_32 in _BYTES_OF_32.items():
        if bytes_of_32 * width == 32 * record_bytes:
            return record_format
    raise ConfigError(f"record of {record_bytes} bytes fits no format at width {width}")
