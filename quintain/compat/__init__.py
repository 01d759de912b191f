"""The names of other frameworks at their own paths: only the root of an import changes."""
