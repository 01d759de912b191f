"""Converts hyper-parameters that another version wrote, or nip itself, step by step to those of this one.

A step is registered for a package and two versions. Version strings may be partial: "1.0" stands for every 1.0.x. None
is a time before versions were stored. What is converted carries its new version, so nothing is converted twice. Another
patch version is taken as it is, and so is an earlier minor one that no step is registered for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeAlias

from quintain.core.versions import quintain_version
from quintain.errors import SettingsError
from quintain.typing import JsonObject

VERSION_KEY, PACKAGE_KEY = "_package_version", "_package_name"
OWN, NIP = "quintain", "nip"

Convert: TypeAlias = Callable[[JsonObject], JsonObject]


@dataclass(frozen=True)
class Conversion:
    """A conversion of one package from one version to another."""

    package: str
    from_version: str | None
    to_version: str
    convert: Convert

    def fits(self, version: str | None) -> bool:
        """Whether it converts hyper-parameters of this version."""
        known = self.from_version
        return version is None if known is None else version is not None and f"{version}.".startswith(f"{known}.")


_steps: list[Conversion] = []


def register_conversion_function(
    from_version: str | None, to_version: str, *, package: str = OWN
) -> Callable[[Convert], Convert]:
    """Returns the decorator of a function that converts hyper-parameters, as plain mappings, between two versions."""

    def remember(convert: Convert) -> Convert:
        _steps.append(Conversion(package, from_version, to_version, convert))
        return convert

    return remember


def convert_hyper_param_dict(
    data: Mapping[str, object], *, version: str | None = None, package: str | None = None
) -> JsonObject:
    """Returns hyper-parameters in the form of this version; `data` stays as it is.

    Package and version are those that the mapping carries; arguments stand for a mapping that carries none.
    """
    now: JsonObject = deepcopy(dict(data))
    package = str(now.get(PACKAGE_KEY) or package or OWN)
    found = now.get(VERSION_KEY, version)
    at = None if found is None else str(found)
    targets = {OWN: quintain_version(), NIP: "1.0"}
    if package not in targets:
        raise SettingsError(
            f'hyper-parameters: found those of package "{package}", expected {" or ".join(targets)}', code="E0275"
        )
    target = targets[package]
    while at is None or at.split(".")[:2] != target.split(".")[:2]:
        steps = [step for step in _steps if step.package == package and step.fits(at)]
        if not steps and at is not None and _is_earlier_minor(at, target):
            # A minor version only adds parameters, so without a step of its own it needs none.
            at = target
            break
        if len(steps) != 1:
            many = "no conversion" if not steps else f"{len(steps)} conversions"
            raise SettingsError(
                f"hyper-parameters of {package} {at or 'before versions'}: there is {many} towards {target}; "
                "register_conversion_function adds one",
                code="E0275",
            )
        now, at = steps[0].convert(now), steps[0].to_version
    return {**now, PACKAGE_KEY: package, VERSION_KEY: at}


def _is_earlier_minor(found: str, target: str) -> bool:
    """Whether a version has the major version of another and an earlier minor one."""
    (major, minor), (own_major, own_minor) = (f"{each}.".split(".")[:2] for each in (found, target))
    return major == own_major and minor.isdecimal() and int(minor) < int(own_minor)


@register_conversion_function(None, "1.0", package=NIP)
@register_conversion_function("0.1", "1.0", package=NIP)
def convert_nip_0_1(data: JsonObject) -> JsonObject:
    """Converts nip 0.1: new names of protocols and of SOS, and one more round before a decision counts."""
    protocols = {"pvg": "nip", "abstract_decision_problem": "adp"}
    new = {name.replace("pvg_protocol", "nip_protocol"): value for name, value in data.items()}
    if isinstance(protocol := new.get("interaction_protocol"), str):
        new["interaction_protocol"] = protocols.get(protocol, protocol)
    if isinstance(spg := new.get("spg"), dict):
        names = {"sos_a_param": "sos_scaling_factor", "sos_b_param": "sos_threshold_factor"}
        new["spg"] = {names.get(name, name): value for name, value in spg.items()}
    for name, value in new.items():
        if name.endswith("_protocol") and isinstance(value, dict) and isinstance(value.get("min_message_rounds"), int):
            new[name] = {**value, "min_message_rounds": value["min_message_rounds"] + 1}
    types = {"PvgProtocolParameters": "NipProtocolParameters"}
    if isinstance(own := new.get("nip_protocol"), dict) and own.get("_type") in types:
        new["nip_protocol"] = {**own, "_type": types[own["_type"]]}
    return new
