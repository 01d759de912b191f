"""Checks `quintain config` and `quintain list` as a user calls them."""

import json
import subprocess
import sys

import pytest

from quintain.cli.app import main


def test_show_prints_every_value_with_its_origin(capsys):
    assert main(["config", "show", "ppo", "CartPole-v1", "num_envs=16"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split("#") for line in out.splitlines() if "#" in line]
    values = {line[0].strip(): line[1].strip() for line in lines}
    assert values["num_lanes: 16"] == "override"
    assert values["id: CartPole-v1"] == "argument"
    assert values["clip_coef: 0.2"] == "default"
    assert err == "note: num_envs is experiment.env.num_lanes here\n"


def test_what_show_prints_is_a_run_file(tmp_path, capsys):
    main(["config", "show", "ppo", "CartPole-v1", "seed=3"])
    shown = tmp_path / "shown.yaml"
    shown.write_text(capsys.readouterr().out)
    assert main(["config", "show", str(shown), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert parts["settings"]["experiment"]["seed"] == 3
    assert parts["origins"]["experiment.seed"] == f"{shown}:2"
    assert parts["notes"] == []


def test_show_refuses_a_mistake_in_one_line(capsys):
    assert main(["config", "show", "ppo", "CartPole-v1", "clip_coeff=0.1"]) == 2
    assert capsys.readouterr().err == (
        'error[E0203]: override clip_coeff=0.1: no setting is called "clip_coeff"; did you mean "clip_coef"?\n'
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_schema_is_json(capsys, options):
    assert main(["config", "schema", *options]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"].keys() == {"experiment", "run"}
    assert schema["required"] == ["experiment"]


def test_list_names_and_describes_everything(capsys):
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"kind": "reward_signal", "name": "extrinsic", "description": "The environment's reward."} in rows
    assert all(row["description"].endswith(".") for row in rows)


def test_list_shows_one_kind(capsys):
    assert main(["list", "writer"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("writer\n  console ")
    assert "ppo" not in out


def test_list_refuses_an_unknown_kind(capsys):
    assert main(["list", "robots"]) == 2
    assert 'unknown kind "robots"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["config", "show", "ppo", "CartPole-v1"], ["config", "schema"], ["list"], ["validate", "FILE"]]
)
def test_no_command_imports_torch(tmp_path, words):
    file = tmp_path / "a.yaml"
    file.write_text("experiment: {env: {type: gym, id: A}, behaviors: {b: {algorithm: ppo}}}")
    words = [str(file) if word == "FILE" else word for word in words]
    code = (
        f"import sys; from quintain.cli.app import main; exit_code = main({words!r}); "
        "sys.exit(exit_code or bool({'torch', 'tensordict', 'gymnasium'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
