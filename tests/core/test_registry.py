"""Checks names: what ships, what users add, plugins, and what happens to a name nobody knows."""

import importlib.metadata
import subprocess
import sys

import pytest

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings import PartSettings, RunFile
from quintain.trainers.settings import ScheduledEventSettings


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


def test_what_ships():
    shipped = {kind: registry.names(kind) for kind in registry.KINDS}
    assert "gym" in shipped["env"]
    assert "ppo" in shipped["algorithm"]
    assert {"evaluate", "stop_at_return"} <= set(shipped["event"])
    assert "evaluate" not in shipped["trainer"]
    # Wrappers that ship are Gymnasium's, which are found without being registered.
    assert [kind for kind, found in shipped.items() if not found] == ["wrapper"]


def test_a_later_module_is_imported_when_its_name_is_asked_for():
    later = "quintain.algorithms.online_settings"
    script = (
        "import sys; from quintain.core import registry; "
        f"registry.get('algorithm', 'ppo'); assert '{later}' not in sys.modules; "
        "print(registry.get('algorithm', 'online_ppo').name, 'online_ppo' in registry.names('algorithm'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["online_ppo", "True"]


def test_parts_of_a_kind_are_declared_in_several_modules(monkeypatch, tmp_path):
    (tmp_path / "more_loops.py").write_text(
        "from quintain.core.registry import Registration\n"
        "from quintain.trainers.settings import LoopSettings\n"
        "REGISTERED = (Registration('loop', 'other', LoopSettings, 'no_such_module:Loop'),\n"
        "              Registration('writer', 'of_another_kind', LoopSettings, 'no_such_module:Writer'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "loop": (*registry.KINDS["loop"], "more_loops")})
    assert "more_loops" not in sys.modules
    assert set(registry.names("writer")) & {"other", "of_another_kind"} == set()
    assert "more_loops" not in sys.modules, "imported though no loop was asked for"
    assert {"hosted", "other"} <= set(registry.names("loop"))
    assert registry.name_of("loop", registry.get("loop", "hosted").settings_class) == "hosted"
    assert registry.register("loop", "mine")(type("Mine", (), {})) is registry.get("loop", "mine").load()


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(SettingsError, match='unknown algorithm "pppo"; did you mean "ppo"\\?') as caught:
        registry.get("algorithm", "pppo")
    assert (caught.value.code, caught.value.exit_code) == ("E0204", 2)


def test_an_unknown_kind_lists_the_kinds():
    with pytest.raises(SettingsError, match='unknown kind "robot"; expected one of: env, env_event, policy'):
        registry.names("robot")


def test_a_class_may_not_take_a_name_in_use():
    registry.register("algorithm", "mine")(type("First", (), {}))
    with pytest.raises(SettingsError, match=r'"mine" is already registered for .*First; choose another name'):
        registry.register("algorithm", "mine")(type("Second", (), {}))
    with pytest.raises(SettingsError, match=r"already registered for quintain\.algorithms\.ppo:PPO"):
        registry.register("algorithm", "ppo")(type("Second", (), {}))


def test_a_class_may_be_defined_again_under_its_name():
    registry.register("algorithm", "mine")(type("Mine", (), {"version": 1}))
    registry.register("algorithm", "mine")(type("Mine", (), {"version": 2}))
    assert registry.get("algorithm", "mine").load().version == 2


def test_a_part_without_settings_gets_those_of_its_kind():
    registry.register("env", "bare")(type("Bare", (), {}))
    assert registry.get("env", "bare").settings_class.__name__ == "EnvSettings"


def test_defaults_are_for_blocks_that_exist():
    with pytest.raises(SettingsError, match="registers defaults for store; expected policy, rollout, trainer"):
        registry.register("algorithm", "mine", defaults={"store": {}})(type("Mine", (), {}))


def test_a_functions_parameters_are_its_settings():
    @registry.register("event", "anneal_friction")
    def anneal_friction(trainer, low: float = 0.2, *, name: str):
        """Makes the floor more slippery."""

    settings_class = registry.get("event", "anneal_friction").settings_class
    assert issubclass(settings_class, ScheduledEventSettings)
    settings = settings_class(every_env_steps="10k", name="ice")
    assert settings.parameters() == {"low": 0.2, "name": "ice"}
    assert settings.every_env_steps == 10_000
    assert registry.descriptions("event")["anneal_friction"] == "Makes the floor more slippery."
    events = "events=[{type: anneal_friction, every_updates: 2, name: ice, low: 1}]"
    event = RunFile.from_names("ppo", "A-v1", events).experiment.behaviors["default"].events[-1]
    assert (event.type, event.low, event.every_updates) == ("anneal_friction", 1.0, 2)


@pytest.mark.parametrize("interval", ["", "every_updates: 1, every_env_steps: 1, "])
def test_a_scheduled_event_has_exactly_one_interval(interval):
    @registry.register("event", "ping")
    def ping(trainer): ...

    with pytest.raises(SettingsError, match="set one of every_env_steps, every_updates, after and on"):
        RunFile.from_names("ppo", "A-v1", "events=[{" + interval + "type: ping}]")


@pytest.mark.parametrize("name", ["a3c", "A3C"])
def test_the_nearest_of_a_name_is_nearest_in_meaning_where_it_is_known(name):
    with pytest.raises(SettingsError, match=rf'unknown algorithm "{name}"; a2c is its synchronous counterpart'):
        registry.get("algorithm", name)


def test_a_parameter_needs_a_type_or_a_default():
    @registry.register("event", "ping")
    def ping(trainer, low=1, words="a"): ...

    settings = registry.get("event", "ping").settings_class(low=3, every_updates=1)
    assert (settings.low, settings.words) == (3, "a")
    with pytest.raises(SettingsError, match="low"):
        registry.get("event", "ping").settings_class(low="three", every_updates=1)
    with pytest.raises(SettingsError, match=r"pong\(\): parameter low needs a type, .* or a default"):

        @registry.register("event", "pong")
        def pong(trainer, low): ...


def test_settings_are_found_by_their_class():
    ppo = registry.get("algorithm", "ppo").settings_class
    assert registry.name_of("algorithm", ppo) == "ppo"
    with pytest.raises(SettingsError, match="registered for no env"):
        registry.name_of("env", ppo)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Env", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:Env", 'json has no "Env"'),
        ("json:__name__", "not a class or function"),
    ],
)
def test_an_import_that_fails_shows_its_first_line(path, message):
    with pytest.raises(SettingsError) as caught:
        registry.get("env", path)
    assert (caught.value.code, caught.value.exit_code) == ("E0208", 2)
    assert caught.value.message.startswith(f'cannot import env "{path}": ')
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "a_plugin.py").write_text(
        "from quintain.core.registry import register\n"
        "from quintain.algorithms.settings import AlgorithmSettings\n"
        "class PlugSettings(AlgorithmSettings):\n    depth: int = 3\n"
        "@register('algorithm', 'plugged', PlugSettings)\n"
        "class Plug: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_plugin", raising=False)
    entry = importlib.metadata.EntryPoint("plugged", "a_plugin:Plug", "quintain.algorithm")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [entry] if group == "quintain.algorithm" else []
    )


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_listed_without_importing_it():
    assert "plugged" in registry.names("algorithm")
    assert registry.descriptions("algorithm")["plugged"] == "Loads a_plugin:Plug."
    assert "a_plugin" not in sys.modules


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_used_by_its_name():
    algorithm = RunFile.from_names("plugged", "A-v1", "depth=4").experiment.behaviors["default"].algorithm
    assert (algorithm.type, algorithm.depth) == ("plugged", 4)


def test_a_settings_class_may_serve_two_names():
    class Shared(PartSettings):
        size: int = 1

    registry.register("policy", "one", Shared)(type("One", (), {}))
    registry.register("policy", "two", Shared)(type("Two", (), {}))
    with pytest.raises(SettingsError, match="Shared is registered as one, two; set its type"):
        RunFile.from_names("ppo", "A-v1").replace("policy", Shared())
    chosen = RunFile.from_names("ppo", "A-v1").replace("policy", Shared(type="two", size=3))
    assert chosen.experiment.behaviors["default"].policy.model_dump() == {"type": "two", "size": 3}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("CartPole-v1", {"type": "gym", "id": "CartPole-v1"}),
        ("native/CartPole-v1", {"type": "native", "id": "CartPole-v1"}),
        ("envpool/Pong-v5", {"type": "envpool", "id": "Pong-v5"}),
        ("ALE/Pong-v5", {"type": "gym", "id": "ALE/Pong-v5"}),
        ("my.module:Env", {"type": "gym", "id": "my.module:Env"}),
        ("native", {"type": "native"}),
        ("gym", {"type": "gym", "id": "gym"}),
    ],
)
def test_one_word_names_an_environment(word: str, expected: dict[str, str]) -> None:
    assert registry.env_named(word) == expected
