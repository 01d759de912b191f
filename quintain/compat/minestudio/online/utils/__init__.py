"""Paths of minestudio.online.utils."""
