"""Paths of minestudio."""
