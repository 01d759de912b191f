"""A secret among the settings is refused, wherever it came from, and the refusal does not repeat it."""

import pytest

from quintain.errors import SettingsError
from quintain.settings import RunFile
from quintain.settings.secrets import looks_secret

# Made up, and put together here so that no scanner takes this file for a leak.
ISSUED = "sk-" + "proj-" + "4f9a1b2c3d4e5f6a7b8c9d0e"
HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (ISSUED, "anything"),
        ("hf_" + "AbCdEf0123456789AbCdEf", ""),
        ("ghp_" + "0123456789abcdefABCDEF", ""),
        ("AKIA" + "IOSFODNN7EXAMPLE9", ""),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc", "certificate"),
        ("postgres://user:hunter2@host/db", "storage"),
        (HEX, "api_key"),
        (HEX, "wandb-token"),
        (HEX, "accessToken"),
        (HEX, "credentials"),
        ("hunter2", "password"),
        ("hunter2", "db_passwd"),
        ("x", "client_secret"),
    ],
)
def test_what_a_machine_issued_and_what_is_called_a_password_looks_secret(text, name):
    assert looks_secret(text, name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pixels", "obs_key"),
        ("<pad>", "pad_token"),
        ("a-long-but-plain-name-of-2024", "render_key"),
        ("sk-learn-experiments-2024", "project"),
        ("hf-transformer-small-v2", "id"),
        (HEX, "digest"),
        (HEX, "monkey"),
        ("env:DATABASE_PASSWORD", "password"),
        ("file:/run/keys/db", "password"),
        ("$DB_PASSWORD", "password"),
        ("", "password"),
        ("https://host:8080/path@2", "url"),
        ("examples.tasks:Catch", "id"),
    ],
)
def test_words_names_and_references_do_not(text, name):
    assert not looks_secret(text, name)


def test_a_file_with_a_secret_is_refused_with_its_place_and_without_its_value(tmp_path):
    (tmp_path / "file.yaml").write_text(
        "experiment:\n"
        f"  env: {{type: gym, id: CartPole-v1, kwargs: {{server: {{api_key: {HEX}}}}}}}\n"
        "  behaviors: {default: {algorithm: ppo}}\n"
    )
    with pytest.raises(SettingsError) as caught:
        RunFile.load(tmp_path / "file.yaml")
    assert (caught.value.code, caught.value.exit_code) == ("E0209", 2)
    place = f"{tmp_path / 'file.yaml'}:2:"
    assert caught.value.message.startswith(place)
    assert "experiment.env.kwargs.server.api_key: looks like a secret" in caught.value.message
    assert HEX not in "".join(caught.value.lines())


@pytest.mark.parametrize("key", ["experiment.env.kwargs", "kwargs"])
def test_an_override_with_a_secret_is_refused_without_its_value(key):
    with pytest.raises(SettingsError) as caught:
        RunFile.from_names("ppo", "CartPole-v1", f"{key}={{tokens: [first, {ISSUED}]}}")
    assert caught.value.code == "E0209"
    assert caught.value.message.startswith("an override: experiment.env.kwargs.tokens.1: ")
    assert ISSUED not in "".join(caught.value.lines())


def test_a_secret_from_python_is_refused_too():
    run_file = RunFile.from_names("ppo", "CartPole-v1")
    with pytest.raises(SettingsError) as caught:
        run_file.replace("experiment.env.kwargs", {"password": "hunter2"})
    assert caught.value.code == "E0209"
    assert "hunter2" not in caught.value.message
    assert (
        run_file.replace("experiment.env.kwargs", {"password": "env:PW"}).experiment.env.kwargs["password"] == "env:PW"
    )
