"""Names of nip.parameters.parameters_base."""

from quintain.experiments.parameters_base import (
    BaseHyperParameters,
    ParameterValue,
    SubParameters,
    get_parameter_class,
    register_parameter_class,
    register_parameter_value_class,
)

__all__ = [
    "BaseHyperParameters",
    "ParameterValue",
    "SubParameters",
    "get_parameter_class",
    "register_parameter_class",
    "register_parameter_value_class",
]
