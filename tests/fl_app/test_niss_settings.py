"""NISS from its configuration: what is refused, what the parameters become, what a run reports."""

import pytest

from fl_app.config import compose_settings
from fl_app.errors import ConfigError
from fl_app.registry import build_strategy, check_settings
from strategies.dp_fedpaq import DpFedPaq
from strategies.niss import Coalition, Niss
from strategies.niss.attempts import AttemptLimits

UNIFORM = "strategy.pair_noise=uniform"


def make(*overrides: str):
    return compose_settings(["strategy=niss", "num_rounds=2", *overrides])


REFUSED = [
    ("strategy.pair_noise=laplace", "strategy.pair_noise: 'laplace'; allowed: gaussian or uniform"),
    ("strategy.graph=tree", "strategy.graph: 'tree'; allowed: complete or sparse"),
    ("strategy.graph=sparse", "strategy.graph: 'sparse'; allowed: complete unless pair_noise"),
    ("strategy.pair_noise=none", "strategy.pair_noise: 'none'; allowed: gaussian, uniform with"),
    ("strategy.weighting=examples", "strategy.weighting: 'examples'; allowed: uniform"),
    ("strategy.weighting=sizes", "strategy.weighting: 'sizes'; allowed: uniform or examples"),
    ("strategy.colluding_fraction=1", "strategy.colluding_fraction: 1.0; allowed: "),
    ("strategy.colluding_fraction=-.1", "strategy.colluding_fraction: -0.1; allowed: "),
    ("strategy.colluding_fraction=nan", "strategy.colluding_fraction: nan; allowed: "),
    ("strategy.min_ready=1", "strategy.min_ready: 1; allowed: an integer >= 2"),
    ("strategy.min_ready=2.5", "strategy.min_ready: 2.5; allowed: an integer"),
    ("strategy.min_ready=true", "strategy.min_ready: true; allowed: an integer"),
    ("strategy.max_dropouts=-1", "strategy.max_dropouts: -1; allowed: an integer >= 0"),
    ("strategy.max_attempts=0", "strategy.max_attempts: 0; allowed: an integer >= 1"),
    ("strategy.expected_dropouts=-1", "strategy.expected_dropouts: -1; allowed: an integer >= 0"),
    ("strategy.tau=.5", "strategy.tau: 0.5; allowed: null with mode=sound"),
    ("strategy.unit_noise_std=1", "strategy.unit_noise_std: 1.0; allowed: null with mode=sound"),
    ("strategy.collusion_bound=none", "strategy.collusion_bound: 'none'; allowed: conservative"),
    ("strategy.target_epsilons={a: 1}", "strategy.target_epsilons: 'a'; allowed: client numbers"),
    ("strategy.target_epsilons={-1: 1}", "strategy.target_epsilons: '-1'; allowed: client numb"),
    ("strategy.target_epsilons={03: 1}", "strategy.target_epsilons: '03'; allowed: client numb"),
    ("strategy.target_epsilons={10: 1}", "strategy.target_epsilons: 10; allowed: client numbers 0"),
    *(
        (f"strategy.target_epsilons={{1: 2, 3: {value}}}", f"strategy.target_epsilons.3: {shown}; ")
        for value, shown in (
            *(("nan", "nan"), ("inf", "inf"), ("-inf", "-inf"), ("0", "0"), ("-1", "-1")),
            *(
                ("true", "true"),
                ("x", "'x'"),
                ("null", "null"),
                ("[1]", "[1]"),
                ("{a: 1}", "{a: 1}"),
            ),
            *(("1e300", "1e+300"), ("'1'", "'1'")),
        )
    ),
    ("strategy.target_epsilons=3", "strategy.target_epsilons: 3"),
    ("strategy.coalitions=[3]", "strategy.coalitions[0]: 3"),
    (
        "strategy.coalitions=[{clients: [0], colluding_fraction: 0, min_ready: 2}]",
        "strategy.coalitions[0].clients: [0]; allowed: different numbers, at least min_ready = 2",
    ),
    (
        "strategy.coalitions=[{clients: [0, 1], colluding_fraction: 0, min_ready: 2}, "
        "{clients: [3, 4], colluding_fraction: 2, min_ready: 2}]",
        "strategy.coalitions[1].colluding_fraction: 2.0; allowed: a number >= 0 and < 1",
    ),
    ("strategy.mechanism=dp_sgd", "strategy.mechanism: 'dp_sgd'; allowed: update_noise with niss"),
    (
        "strategy.neighboring_relation=zero_out",
        "strategy.neighboring_relation: 'zero_out'; allowed: replace_one, add_or_remove_one with "
        "unit=record",
    ),
    ("strategy.num_levels=5", "strategy.num_levels: 5; allowed: null with niss"),
    ("strategy.collusion_bound=optimistic", "strategy.collusion_bound: 'optimistic'; allowed: con"),
    (
        "strategy.coalitions=[{clients: [0, 1], colluding_fraction: 0}]",
        "strategy.coalitions[0].min_ready: ",
    ),
    (
        "strategy.coalitions=[{clients: [0, 1], colluding_fraction: 0, min_ready: 2, more: 1}]",
        "strategy.coalitions[0].more: ",
    ),
    ("strategy.clipping_norm=null", "strategy.clipping_norm: null; allowed: a number > 0"),
    ("strategy.quantizer=qsgd", "strategy.quantizer: 'qsgd'; allowed: none with niss"),
    ("participation=poisson", "participation: 'poisson'; allowed: fixed, round_robin with niss"),
    ("strategy.min_raedy=3", "strategy.min_raedy"),
    ("faults.drop_after_ready=1.5", "faults.drop_after_ready: 1.5; allowed: a number in [0, 1]"),
]


@pytest.mark.parametrize(("override", "words"), REFUSED, ids=lambda each: each[:50])
def test_what_is_wrong_is_named(override, words):
    with pytest.raises(ConfigError) as refused:
        check_settings(make(override))
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy.min_ready=11"], "strategy.min_ready: 11; allowed: at most the clients of a"),
        (["num_sampled_clients=1"], "num_sampled_clients: 1; allowed: at least 2 clients a round"),
        (["strategy.expected_dropouts=8"], "strategy.expected_dropouts: 8; allowed: 0 to 6"),
        (
            ["strategy.colluding_fraction=0.8"],
            "strategy.colluding_fraction: 0.8; allowed: two honest clients at least: of 10",
        ),
        (["strategy.max_dropouts=1", UNIFORM], "strategy.max_dropouts: 1; allowed: 0"),
        (
            ["strategy.graph=sparse", UNIFORM, "strategy.target_delta=1e-9"],
            "strategy.target_delta: 1e-09; allowed: more than 1e-09 for each of",
        ),
        (["budget.uplink_bits=1000"], "budget.uplink_bits: 1000; allowed: at least K r beta"),
        (["strategy.clipping_norm=1e-300"], "strategy.clipping_norm: 1e-300; allowed: at least"),
        (
            ["strategy.coalitions=[{clients:[0,42],colluding_fraction:0.0,min_ready:2}]"],
            "strategy.coalitions: 42; allowed: client numbers 0 to 9",
        ),
        (
            [
                "strategy.coalitions=[{clients:[0,1,2],colluding_fraction:0.0,min_ready:3}]",
                "num_sampled_clients=2",
            ],
            "strategy.coalitions[0].min_ready: 3; allowed: at most the clients of a round, 2",
        ),
        (
            ["strategy.coalitions=[{clients:[0,1,2],colluding_fraction:0.5,min_ready:2}]"],
            "strategy.coalitions[0].colluding_fraction: 0.5; allowed: a fraction that leaves 2",
        ),
        (["fraction_train=0.1"], "fraction_train: 0.1; allowed: at least 2 clients a round"),
        (["num_clients=1"], "num_clients: 1; allowed: at least 2 clients a round with niss"),
    ],
    ids=str,
)
def test_what_only_the_run_s_size_shows_is_named_before_anybody_is_asked(fl_app, overrides, words):
    ended = fl_app("run", "strategy=niss", "num_rounds=2", *overrides, "hydra.run.dir=run")
    assert ended.code == 2
    assert ended.errors.startswith(f"fl-app: {words}")
    assert ended.errors.count("\n") == 1


CENTRAL = "strategy.noise_at=server"


PAPER = "strategy=niss_paper"


DP_FEDAVG = "strategy=niss_dp_fedavg"


COALITION = "strategy.coalitions=[{clients: [0, 1, 2], colluding_fraction: 0, min_ready: 3}]"


ALL_IN_ONE = (
    "strategy.coalitions=[{clients: [0, 1, 2, 3, 4], colluding_fraction: 0.2, min_ready: 5}]"
)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # A trusted server: nothing cancels, so nothing that is said of it matters.
        ([CENTRAL, "strategy.pair_noise=uniform"], "pair_noise: 'uniform'; allowed: 'gaussian'"),
        ([CENTRAL, "strategy.graph=sparse"], "graph: 'sparse'; allowed: 'complete'"),
        ([CENTRAL, "strategy.expected_dropouts=1"], "expected_dropouts: 1; allowed: 0"),
        ([CENTRAL, "strategy.min_ready=3"], "min_ready: 3; allowed: null"),
        ([CENTRAL, "strategy.max_dropouts=0"], "max_dropouts: 0; allowed: null"),
        ([CENTRAL, "strategy.max_attempts=2"], "max_attempts: 2; allowed: 3"),
        ([CENTRAL, COALITION], "coalitions: [{clients: [0, 1, 2], colluding_fraction: 0.0, min_"),
        ([CENTRAL, "strategy.target_epsilons={3: 1}"], "target_epsilons: {3: 1}; allowed: null"),
        ([CENTRAL, "strategy.weighting=examples"], "weighting: 'examples'; allowed: 'unifo"),
        ([CENTRAL, "strategy.unit_noise_std=1"], "unit_noise_std: 1.0; allowed: null"),
        ([CENTRAL, "strategy.tau=0"], "tau: 0.0; allowed: null"),
        ([CENTRAL, "strategy.collusion_bound=optimistic"], "collusion_bound: 'optimistic'; allow"),
        ([CENTRAL, "strategy.mechanism=dp_sgd"], "mechanism: 'dp_sgd'; allowed: update_noise"),
        ([CENTRAL, PAPER], "noise_at: 'server'; allowed: client with strategy.mode=paper"),
        ([CENTRAL, "faults.drop_after_ready=.1"], "drop_after_ready: 0.1; allowed: 0 without"),
        # Shares of the published algorithm.
        ([PAPER, COALITION], "coalitions: [{clients: [0, 1, 2], colluding_fraction: 0.0, min_"),
        ([PAPER, "strategy.expected_dropouts=1"], "expected_dropouts: 1; allowed: 0 with mode="),
        ([PAPER, "strategy.max_grad_norm=1"], "max_grad_norm: 1.0; allowed: null with niss, but"),
        (
            [PAPER, "strategy.tau=.5", "strategy.collusion_bound=optimistic"],
            "collusion_bound: 'optimistic'; allowed: conservative beside tau",
        ),
        ([DP_FEDAVG, "strategy.tau=0"], "tau: 0.0; allowed: null with pair_noise=none"),
        ([DP_FEDAVG, "strategy.unit_noise_std=1"], "unit_noise_std: 1.0; allowed: null with pair"),
        ([DP_FEDAVG, "strategy.collusion_bound=optimistic"], "collusion_bound: 'optimistic'; all"),
        # Uniform masks.
        ([UNIFORM, "strategy.expected_dropouts=1"], "expected_dropouts: 1; allowed: 0 with pair_"),
        (
            [
                *(UNIFORM, "strategy.target_epsilon=null", "strategy.noise_multiplier=0"),
                "strategy.colluding_fraction=.3",
            ],
            "colluding_fraction: 0.3; allowed: 0.1 without noise",
        ),
        # Where nobody is outside of coalitions.
        ([ALL_IN_ONE, "num_clients=5", "strategy.min_ready=2"], "min_ready: 2; allowed: null wh"),
        (
            [ALL_IN_ONE, "num_clients=5", "strategy.colluding_fraction=.3"],
            "colluding_fraction: 0.3; allowed: 0.1 where every client is in a coalition",
        ),
        # Both bounds of dropouts.
        (
            ["strategy.expected_dropouts=3", "strategy.max_dropouts=2"],
            "expected_dropouts: 3; allowed: at most max_dropouts = 2",
        ),
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused_by_name(overrides, words):
    with pytest.raises(ConfigError) as refused:
        check_settings(make(*overrides))
    assert str(refused.value).partition(".")[2].startswith(words)


@pytest.mark.parametrize(
    "overrides",
    [
        [CENTRAL],
        [CENTRAL, "strategy.colluding_fraction=0.3"],
        [PAPER, "strategy.tau=.5", "strategy.colluding_fraction=.3"],
        [PAPER, "strategy.collusion_bound=optimistic", "strategy.unit_noise_std=1"],
        [DP_FEDAVG, "strategy.weighting=examples", "strategy.max_dropouts=1"],
        [UNIFORM, "strategy.max_dropouts=0"],
        [ALL_IN_ONE, "num_clients=5"],
        [ALL_IN_ONE, "strategy.colluding_fraction=.3", "strategy.min_ready=4"],
        ["strategy.expected_dropouts=2", "strategy.max_dropouts=2"],
        ["strategy.sensitivity=auto", "strategy.max_grad_norm=1", "strategy.local_steps=1"],
    ],
    ids=str,
)
def test_what_has_an_effect_is_allowed(overrides):
    check_settings(make(*overrides))


def test_every_key_reaches_the_parameters():
    strategy = build_strategy(
        make(
            *("strategy.colluding_fraction=.25", "strategy.target_epsilons={3: 2, 1: 5.5}"),
            *("strategy.min_ready=6", "strategy.max_dropouts=2", "strategy.max_attempts=5"),
            *("strategy.expected_dropouts=1", "participation=round_robin"),
            "strategy.coalitions=[{clients: [0, 1, 2], colluding_fraction: 0.1, min_ready: 3}]",
        )
    )
    assert isinstance(strategy, Niss)
    given = strategy.parameters
    assert given.colluding_fraction == 0.25
    assert given.client_epsilons == ((1, 5.5), (3, 2.0))
    assert given.expected_dropouts == 1
    assert given.coalitions == (Coalition((0, 1, 2), 0.1, 3),)
    assert strategy.limits == AttemptLimits(6, 2, 5)
    assert strategy.cohorts.participation == "round_robin"
    masks = build_strategy(make(UNIFORM, "strategy.graph=sparse"))
    assert isinstance(masks, Niss)
    assert (masks.parameters.pair_noise, masks.parameters.graph) == ("uniform", "sparse")
    assert masks.limits.max_dropouts == 0


def test_settings_survive_the_wire():
    made = make(
        "strategy.target_epsilons={3: 2}",
        "strategy.coalitions=[{clients: [0, 1, 2], colluding_fraction: 0.1, min_ready: 3}]",
    )
    again = type(made).from_json(made.to_json())
    assert again == made
    assert build_strategy(again).parameters == build_strategy(made).parameters


def test_with_noise_at_the_server_nothing_needs_to_cancel(run):
    options = ("strategy.unit=client", "strategy.neighboring_relation=zero_out")
    settings = make("strategy.noise_at=server", *options)
    assert isinstance(build_strategy(settings), DpFedPaq)
    outcome = run(
        *("strategy=niss", "strategy.noise_at=server", "num_rounds=2", "num_clients=4", *options),
    )
    assert [row["adversary"] for row in outcome.guarantees] == ["server", "model_user"]
    assert outcome.summary["strategy"] == "niss"
    assert outcome.rows[-1]["num_replies"] == 4


def test_the_list_says_what_it_is(fl_app):
    listed = fl_app("list")
    assert listed.code == 0
    (line,) = (each for each in listed.output.splitlines() if each.split()[:1] == ["niss"])
    assert "noise that cancels" in line.lower()
