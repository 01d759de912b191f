"""Compiled steps of scenarios. A folder of its own: machine code is kept for as long as no source here changes."""
