"""The examples for clusters: they parse, their commands are ones that we accept, and their names fit together."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import typer
import yaml

from trainwright.cli.app import app
from trainwright.config.loading import load_experiment

EXAMPLES = Path(__file__).parents[2] / "examples"


def documents() -> dict[str, Any]:
    found = yaml.safe_load_all((EXAMPLES / "kubernetes/trainjob.yaml").read_text())
    return {document["kind"]: document for document in found}


def parsed(words: list[str]) -> dict[str, Any]:
    """What the real command makes of ``words``, without doing it."""
    command: Any = typer.main.get_command(app)
    name, launch, rest = command.resolve_command(command.make_context("trainwright", words), words)
    assert name == "launch"
    return launch.make_context(name, rest).params


def test_the_command_of_the_kubernetes_example_is_ours(tmp_path: Path) -> None:
    found = documents()
    job, runtime = found["TrainJob"]["spec"]["trainer"], found["TrainingRuntime"]["spec"]
    assert runtime["mlPolicy"]["torch"] == {}
    # What Kubeflow Trainer's torch policy sets in each pod.
    sets = {
        "PET_NNODES": str(job["numNodes"]),
        "PET_NPROC_PER_NODE": str(job["numProcPerNode"]),
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "digits-node-0-0.digits",
        "PET_MASTER_PORT": "29500",
    }
    (name, text) = next(iter(found["ConfigMap"]["data"].items()))
    (tmp_path / name).write_text(text)
    words = [re.sub(r"\$\((\w+)\)", lambda used: sets[used[1]], word) for word in job["command"]]
    assert words[0] == "trainwright"
    assert words[-1] == f"/experiment/{name}"
    options = parsed([*words[1:-1], str(tmp_path / name)])
    assert (options["nodes"], options["processes"], options["node_rank"]) == ("2", "4", 1)
    assert options["rdzv"] == "digits-node-0-0.digits:29500"
    assert options["max_restarts"] == 3
    experiment = load_experiment(tmp_path / name).experiment
    assert experiment.training["output_dir"].startswith("/runs/")


def test_the_names_in_the_kubernetes_example_fit_together() -> None:
    found = documents()
    job, runtime = found["TrainJob"]["spec"], found["TrainingRuntime"]
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["runtimeRef"]["kind"] == runtime["kind"]
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node"
    spec = node["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volumes["experiment"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    rules = spec["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"Ignore": [75], "FailJob": [2]}
    # Kubernetes takes a pod failure policy only together with this.
    assert pod["restartPolicy"] == "Never"
    assert all(rule["onExitCodes"]["containerName"] == container["name"] for rule in rules if "onExitCodes" in rule)
    assert pod["terminationGracePeriodSeconds"] > 30


def test_the_slurm_example_is_a_script_for_bash() -> None:
    for script in (EXAMPLES / "slurm").glob("*.sbatch"):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
