"""Paths of minestudio.online."""
