"""What all sections of the configuration have in common."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from training.kubernetes_rules import RULE

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A section, or a part of one: unknown keys are refused, and defaults are checked as values are."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    # To pydantic, true is a 1; to who wrote `yes`, it was none.
    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, given: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(given, bool) and kind is not bool and {int, float} & {kind, *get_args(kind)}:
            raise PydanticCustomError(RULE, "give a number")
        return given


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, also within a list or beside other kinds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part)) is not None), None)
