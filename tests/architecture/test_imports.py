"""Arrows point one way: every import and every forbidden call, read off the syntax trees.

fl_app -> strategies/<method>/{client,server}.py -> strategies/<method>/algorithm.py ->
strategies/mechanisms. Each rule has a twin below: a line that breaks it and must be caught.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fl_app", "strategies")

CONFIG_LIBRARIES = ("hydra", "omegaconf")
UNPICKLERS = (
    *("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
    *("torch.load", "torch.save", "torch.jit.load", "pandas.read_pickle"),
)
PRIVATE_FLOWER = (
    *("fl_app.engines.flower_internals", "fl_app.engines.supernode_internals"),
    "fl_app.warm_worker",
)
PUBLIC_FLOWER = ("app", "clientapp", "serverapp", "__version__")
NUMPY_RANDOM = re.compile(r"numpy\.random\.(\w+)")
NUMPY_GENERATORS = {
    *("default_rng", "Generator", "BitGenerator", "SeedSequence"),
    *("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"),
}
STANDARD_RANDOM = re.compile(r"random\.(\w+)")
TORCH_SEEDS = (
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.default_generator"),
    *("torch.cuda.default_generators", "torch.set_rng_state", "torch.random.set_rng_state"),
)
PURE_LIBRARIES = {"numpy", "scipy"} | (
    set(sys.stdlib_module_names) - {"logging", "random", "pickle", "marshal", "shelve"}
)
# The files of a method that know Flower; everything else in its folder is its core.
FLOWER_GLUE = (
    *("client", "server", "messages", "received_model", "replies"),
    *("exchanges", "key_memory", "participant", "upload"),
)
# A method whose core builds on another's: NISS is other noise on the same update.
BUILDS_ON = {"niss": ("dp_fedpaq",)}
GLUE_NAMES = "|".join(FLOWER_GLUE)
METHOD_CORE = re.compile(rf"strategies\.(?!mechanisms\.)(\w+)\.(?!(?:{GLUE_NAMES})$)\w+")


@dataclass(frozen=True)
class Use:
    """A name from outside, with all its dots, and where a module imports or reaches for it."""

    line: int
    name: str
    imported: bool


def starts_with(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def dotted_name(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def find_imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the absolute name and the local name of everything imported, anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or ""
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}", alias.asname or alias.name
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = (dotted_name(node.func) or "").rpartition(".")[2]
            if function in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value), ""


def find_uses(source: str, module: str, is_package: bool = False) -> list[Use]:
    """List what a module imports, and the longest names it reaches through what it imports."""
    tree = ast.parse(source)
    uses = []
    targets: dict[str, set[str]] = {}
    for line, name, local in find_imports(tree, module, is_package):
        uses.append(Use(line, name, imported=True))
        local, target = (local, name) if local else (name.split(".")[0], name.split(".")[0])
        targets.setdefault(local, set()).add(target)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            first, _, rest = (dotted_name(node) or "").partition(".")
            uses += [Use(node.lineno, f"{each}.{rest}", False) for each in targets.get(first, ())]
    return uses


def leaves_mechanisms(module: str, use: Use) -> bool:
    outside = ("flwr", *CONFIG_LIBRARIES, "logging", "torch", "fl_app")
    upwards = starts_with(use.name, ("strategies",)) and not starts_with(
        use.name, ("strategies.mechanisms",)
    )
    inside = starts_with(module, ("strategies.mechanisms",))
    return inside and use.imported and (upwards or starts_with(use.name, outside))


def leaves_method_core(module: str, use: Use) -> bool:
    core = METHOD_CORE.fullmatch(module)
    if core is None or not use.imported or starts_with(use.name, ("strategies.mechanisms",)):
        return False
    own = tuple(f"strategies.{name}" for name in (core[1], *BUILDS_ON.get(core[1], ())))
    glue = tuple(f"{package}.{name}" for package in own for name in FLOWER_GLUE)
    if starts_with(use.name, own):
        return starts_with(use.name, glue)
    return use.name.split(".")[0] not in PURE_LIBRARIES


def points_upwards(module: str, use: Use) -> bool:
    inside = starts_with(module, ("strategies",))
    return inside and use.imported and starts_with(use.name, ("fl_app", *CONFIG_LIBRARIES))


def configures_elsewhere(module: str, use: Use) -> bool:
    return module != "fl_app.config" and starts_with(use.name, CONFIG_LIBRARIES)


def unpickles(module: str, use: Use) -> bool:
    return starts_with(use.name, UNPICKLERS)


def draws_globally(module: str, use: Use) -> bool:
    numpy_name = NUMPY_RANDOM.match(use.name)
    standard_name = STANDARD_RANDOM.match(use.name)
    return bool(numpy_name and numpy_name[1] not in NUMPY_GENERATORS) or bool(
        standard_name and standard_name[1] not in ("Random", "SystemRandom")
    )


def seeds_torch(module: str, use: Use) -> bool:
    allowed = module in ("fl_app.local_training", "fl_app.models")
    return not allowed and starts_with(use.name, TORCH_SEEDS)


def enters_flower(module: str, use: Use) -> bool:
    # The worker runs as a script that must not import the app.
    allowed = module in PRIVATE_FLOWER
    first, _, rest = use.name.partition(".")
    return (
        not allowed and first == "flwr" and bool(rest) and rest.split(".")[0] not in PUBLIC_FLOWER
    )


def draws_elsewhere(module: str, use: Use) -> bool:
    drawing = ("fl_app.report.plots", "fl_app.report.picture_drawing")
    return module not in drawing and starts_with(use.name, ("matplotlib",))


RULES: dict[str, Callable[[str, Use], bool]] = {
    "mechanisms use arrays only, and nothing above them": leaves_mechanisms,
    "a method's core (its algorithm) knows mechanisms and itself only": leaves_method_core,
    "strategies know neither the application nor its configuration": points_upwards,
    "hydra and omegaconf are used in fl_app/config.py only": configures_elsewhere,
    "nothing is pickled": unpickles,
    "nothing draws from a global generator": draws_globally,
    "torch is seeded in fl_app/local_training.py and fl_app/models.py only": seeds_torch,
    "private Flower is used in two files of engines and warm_worker.py only": enters_flower,
    "matplotlib is used in the report's plots.py and picture_drawing.py only": draws_elsewhere,
}


def find_breaches(rule: str, source: str, module: str, is_package: bool = False) -> list[str]:
    return [
        f"{module}, line {use.line}: {use.name}"
        for use in find_uses(source, module, is_package)
        if RULES[rule](module, use)
    ]


def list_modules() -> list[tuple[Path, str, bool]]:
    modules = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            modules.append((path, ".".join(parts[:-1] if is_package else parts), is_package))
    return modules


@pytest.mark.parametrize("rule", RULES)
def test_every_module_keeps_the_rule(rule):
    modules = list_modules()
    assert {"fl_app", "strategies.mechanisms"} <= {module for _, module, _ in modules}
    breaches = [
        breach
        for path, module, is_package in modules
        for breach in find_breaches(rule, path.read_text(encoding="utf-8"), module, is_package)
    ]
    assert breaches == []


BREACHES = [
    ("mechanisms", "strategies.mechanisms.clipping", "import torch"),
    ("mechanisms", "strategies.mechanisms.clipping", "def f():\n    from flwr.app import Array"),
    ("mechanisms", "strategies.mechanisms.clipping", "import logging as log"),
    ("mechanisms", "strategies.mechanisms.clipping", "from ..dp_fedpaq import algorithm"),
    ("mechanisms", "strategies.mechanisms.clipping", "from strategies.niss.algorithm import pair"),
    ("mechanisms", "strategies.mechanisms.a.b", "from strategies import rounds"),
    ("algorithm", "strategies.dp_fts_de.algorithm", "from strategies.niss.parameters import P"),
    ("algorithm", "strategies.dp_fedpaq.algorithm", "from strategies.niss.parameters import P"),
    ("algorithm", "strategies.niss.algorithm", "from strategies.dp_fedpaq.client import train"),
    ("algorithm", "strategies.niss.algorithm", "from strategies.niss.server import Niss"),
    ("algorithm", "strategies.niss.algorithm", "from .client import train"),
    ("algorithm", "strategies.niss.algorithm", "import logging"),
    ("algorithm", "strategies.niss.parameters", "import torch.nn"),
    ("application", "strategies.niss.client", "import fl_app"),
    ("application", "strategies.niss.server", "from omegaconf import DictConfig"),
    ("application", "strategies.rounds", "importlib.import_module('fl_app.models')"),
    ("hydra", "fl_app.cli", "from hydra import compose"),
    ("hydra", "fl_app.config_files", "import omegaconf"),
    ("pickled", "fl_app.models", "import pickle"),
    ("pickled", "fl_app.models", "import torch as t\nt.load('x')"),
    ("pickled", "fl_app.models", "from torch import save"),
    ("pickled", "strategies.niss.client", "__import__('marshal')"),
    ("global", "fl_app.data", "import numpy as np\nnp.random.seed(1)"),
    ("global", "fl_app.local_training", "import numpy as np\nx = np.random.normal(size=3)"),
    ("global", "strategies.niss.client", "from numpy import random as r\nr.rand(2)"),
    ("global", "strategies.niss.client", "from numpy.random import randint"),
    ("global", "fl_app.data", "import numpy.random\nnumpy.random.shuffle(x)"),
    ("global", "fl_app.data", "import random\nrandom.seed(0)"),
    ("global", "fl_app.data", "from random import shuffle"),
    ("seeded", "fl_app.server_app", "import torch\ntorch.manual_seed(0)"),
    ("seeded", "fl_app.server_app", "from torch import manual_seed"),
    ("seeded", "strategies.niss.client", "import torch\ntorch.default_generator.manual_seed(0)"),
    ("Flower", "fl_app.server_app", "from flwr.common import ndarrays_to_parameters"),
    ("Flower", "fl_app.server_app", "from flwr import server"),
    ("Flower", "strategies.niss.server", "import flwr.supercore.task_identity"),
    ("Flower", "fl_app.engines.flower", "import flwr\nflwr.simulation.run_simulation()"),
    ("matplotlib", "fl_app.report.html", "def f():\n    import matplotlib.pyplot as plt"),
]


@pytest.mark.parametrize(("words", "module", "source"), BREACHES)
def test_a_breach_is_caught(words, module, source):
    rule = next(rule for rule in RULES if words in rule)
    assert find_breaches(rule, source, module) != []


ALLOWED = [
    ("strategies.mechanisms.gaussian", "import numpy as np\nfrom strategies.mechanisms import rng"),
    ("strategies.mechanisms.gaussian", "from .clipping import clip\nfrom scipy import stats"),
    ("strategies.niss.algorithm", "from strategies.niss.parameters import NissParameters"),
    ("strategies.niss.algorithm", "from strategies.dp_fedpaq.parameters import P"),
    ("strategies.niss.algorithm", "import math\nfrom ..mechanisms.rng import Stream"),
    ("strategies.niss.server", "import logging\nfrom flwr.serverapp.strategy import Strategy"),
    ("strategies.niss.client", "import flwr\nversion = flwr.__version__"),
    ("fl_app.config", "from hydra import compose"),
    ("fl_app.engines.flower_internals", "from flwr.supercore.run import Run"),
    ("fl_app.models", "import torch\ntorch.manual_seed(0)\ntorch.random.fork_rng()"),
    ("fl_app.data", "import numpy as np\ndef f(rng: np.random.Generator): rng.normal()"),
    ("fl_app.data", "import random as r\nr.Random(3)\ndef f(random): random.shuffle([])"),
    ("fl_app.models", "import json, torch\njson.load(f)\ntorch.loadtxt\nmodel.load('pickle')"),
    ("fl_app.report.plots", "def f():\n    from matplotlib.figure import Figure"),
]


@pytest.mark.parametrize(("module", "source"), ALLOWED)
def test_what_is_allowed_passes(module, source):
    assert [find_breaches(rule, source, module) for rule in RULES] == [[] for _ in RULES]


def test_relative_imports_are_resolved_from_packages_too():
    use = find_uses("from . import digits\nfrom .. import models", "fl_app.data", is_package=True)
    assert [each.name for each in use] == ["fl_app.data.digits", "fl_app.models"]
    use = find_uses("from . import digits\nfrom .. import models", "fl_app.data.mnist")
    assert [each.name for each in use] == ["fl_app.data.digits", "fl_app.models"]


def test_mechanisms_load_neither_torch_nor_flower_by_a_detour():
    program = (
        "import importlib, pkgutil, sys, strategies.mechanisms as package\n"
        "for each in pkgutil.walk_packages(package.__path__, 'strategies.mechanisms.'):\n"
        "    importlib.import_module(each.name)\n"
        "unwanted = {'torch', 'flwr', 'hydra', 'omegaconf', 'fl_app'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {unwanted}' if unwanted else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
