"""Gymnasium environments as lanes: single environments, vector environments, EnvPool."""
