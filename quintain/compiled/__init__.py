"""Functions compiled to machine code with numba. Nothing here is imported before a compiled part is used."""
