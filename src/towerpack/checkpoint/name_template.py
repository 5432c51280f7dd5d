"""Names of checkpoints from a template such as `{epoch}-{validation_error:.3f}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter

from towerpack.checkpoint.directory import PREFIX, STATE_FILE, SUFFIX

OF_RUN = ("epoch", "step")
# Of Windows and of patterns, so that a directory may be copied anywhere and names can be matched.
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\[\]\x00-\x1f]|^[. ]|[. ]$')


class NameTemplate:
    """A text with `{epoch}`, `{step}` and scalars in braces, formatted as by `str.format`.

    `scalars` are the names of the scalars. Text that a file name cannot have is refused.

    >>> template = NameTemplate("{epoch:03d}-{validation_error:.3f}")
    >>> template.scalars, template.fill({"epoch": 7, "validation_error": 0.12345})
    (['validation_error'], '007-0.123')
    """

    def __init__(self, text: str):
        self.text = text
        try:
            self._parts = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(
                f"expected a template of a file name, received {text!r}: {error}"
            ) from error
        fields = [field for _, field, _, _ in self._parts if field is not None]
        if not all(fields):
            raise ValueError(f"expected a name in each pair of braces, received {text!r}")
        self.scalars = list(dict.fromkeys(field for field in fields if field not in OF_RUN))
        name = self.fill({name: 1 if name in OF_RUN else 1.0 for name in fields if name})
        if re.fullmatch(rf"{PREFIX}-\d+", name) and text != f"{PREFIX}-{{step}}":
            raise ValueError(
                f"expected another name than {text!r}: the number in {name!r} stands for the step"
            )

    def fill(self, values: Mapping[str, float]) -> str:
        """The name with these values."""
        name = ""
        for literal, field, spec, conversion in self._parts:
            name += literal
            if field is not None:
                value = Formatter().convert_field(values[field], conversion)
                try:
                    name += format(value, spec or "")
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"expected a format for numbers in {self.text!r}, received {spec!r} for "
                        f"{field!r}: {error}"
                    ) from error
        _check(name, self.text)
        return name


def _check(name: str, text: str) -> None:
    found = _FORBIDDEN.search(name)
    if found or not name or name == STATE_FILE or SUFFIX.search(name):
        problem = f"it has {found[0]!r}" if found else f"{name!r} is not a name of its own"
        raise ValueError(
            f"expected a template that makes the name of a file, received {text!r}: {problem}; "
            "use checkpoint_dir for another directory"
        )
