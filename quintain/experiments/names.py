"""The open lists of names: scenarios, trainers, interaction protocols. Registering a class adds its name."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from quintain.errors import SettingsError
from quintain.settings.yaml_text import shortened


class OpenNames(type):
    """A type whose members are names: `"nip" in InteractionProtocolType`, `list(TrainerType)`."""

    known: dict[str, None]
    kind: str
    advice: str

    def __iter__(cls) -> Iterator[str]:
        return iter(list(cls.known))

    def __contains__(cls, name: object) -> bool:
        return name in cls.known

    def __len__(cls) -> int:
        return len(cls.known)

    def add(cls, name: str) -> None:
        """Adds a name; one that is there stays where it is."""
        cls.known[name] = None

    def check(cls, name: object, where: str) -> str:
        """Returns the name if it is known, and otherwise raises with the nearest one."""
        if isinstance(name, str) and name in cls.known:
            return name
        shown = shortened(str(name))
        near = get_close_matches(shown, cls.known, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"expected one of: {', '.join(cls.known)}"
        raise SettingsError(f'{where}: unknown {cls.kind} "{shown}"; {hint} {cls.advice}', code="E0204")


class ScenarioType(str, metaclass=OpenNames):
    """Names of scenarios."""

    known = dict.fromkeys(("graph_isomorphism", "image_classification", "code_validation", "find_the_plus"))
    kind = "scenario"
    advice = "(register_scenario adds one)"


class TrainerType(str, metaclass=OpenNames):
    """Names of trainers."""

    known = dict.fromkeys(("vanilla_ppo", "solo_agent", "spg", "reinforce", "pure_text_ei", "pure_text_malt"))
    kind = "trainer"
    advice = "(register_trainer adds one)"


class InteractionProtocolType(str, metaclass=OpenNames):
    """Names of interaction protocols."""

    known = dict.fromkeys(
        ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel_test"),
    )
    kind = "interaction protocol"
    advice = "(register_protocol_handler adds one)"
