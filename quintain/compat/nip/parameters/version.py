"""Names of nip.parameters.version."""

from quintain.experiments.migrate import (
    convert_hyper_param_dict,
    register_conversion_function,
)

__all__ = [
    "convert_hyper_param_dict",
    "register_conversion_function",
]
