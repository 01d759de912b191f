"""nip.utils: import-only paths."""
