"""Names of nip.utils.nested_array_dict."""

from quintain.data.nested_arrays import NestedArrayDict, concatenate_nested_array_dicts, stack_nested_array_dicts

__all__ = ["NestedArrayDict", "concatenate_nested_array_dicts", "stack_nested_array_dicts"]
