"""The search space of a sweep: its grammar, and which values are tried."""

from __future__ import annotations

import math
import statistics

import optuna
import pytest
import typer

from towerpack.cli.search_space import parse_space

optuna.logging.set_verbosity(optuna.logging.WARNING)


def tried(space, count, seed=0, value=lambda params: 0.0):
    """What a sweep of this many trials would try, each of which has the value of its parameters."""
    trials = []
    while len(trials) < count:
        params = space.propose(trials, seed, maximize=False)
        if params is None:
            break
        distributions = {each.key: each.distribution() for each in space.parameters}
        trials.append(
            optuna.create_trial(params=params, distributions=distributions, value=value(params))
        )
    return [trial.params for trial in trials]


def test_every_form():
    texts = ["a=log(1e-4,1e-1)", "b=uniform(0, 1)", "c=int(1,10)", "d=int(1,1024,log)"]
    space = parse_space([*texts, "e=x,y", "f=(1,2),(3,4)", "g=(5,6)", "h=5", "i=a=b"])
    ranges = [(p.key, p.low, p.high, p.log, p.whole) for p in space.parameters if not p.choices]
    assert ranges == [
        ("a", 1e-4, 0.1, True, False),
        ("b", 0, 1, False, False),
        ("c", 1, 10, False, True),
        ("d", 1, 1024, True, True),
    ]
    assert {p.key: p.choices for p in space.parameters if p.choices} == {
        "e": ("x", "y"),
        "f": ("(1,2)", "(3,4)"),
    }
    assert space.fixed == (("g", "(5,6)"), ("h", "5"), ("i", "a=b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "expected KEY=log"),
        ("=3,4", "expected KEY=log"),
        ("lr=", "expected KEY=log"),
        ("lr=lgo(1,2)", "expected one of 'log', "),
        ("lr=log(1)", "expected log(LOW,HIGH) with numbers, received 'lr=log(1)'"),
        ("lr=log(1,2,3)", "expected log(LOW,HIGH) with numbers"),
        ("lr=log(0,1)", "expected LOW > 0 on a logarithmic scale"),
        ("lr=uniform(2,1)", "expected LOW < HIGH"),
        ("lr=uniform(0,inf)", "expected LOW < HIGH, both finite"),
        ("lr=uniform(0,x)", "expected uniform(LOW,HIGH) with numbers"),
        ("n=int(1,2.5)", "expected int(LOW,HIGH) or int(LOW,HIGH,log) with whole numbers"),
        ("n=int(1,8,lin)", "expected int(LOW,HIGH) or int(LOW,HIGH,log) with whole numbers"),
        ("n=1,,2", "expected different values with commas between them"),
        ("n=1,1", "expected different values with commas between them"),
        ("n=1", "expected a range or several values for at least one key"),
    ],
)
def test_errors_say_what_was_expected(text, message):
    with pytest.raises(typer.BadParameter) as error:
        parse_space([text])
    assert message in error.value.message


def test_a_key_is_given_once():
    with pytest.raises(typer.BadParameter, match="expected each key once, received 'a' again"):
        parse_space(["a=1,2", "a=3"])


def test_the_command_has_the_exact_numbers():
    space = parse_space(["lr=log(1e-4,1e-1)", "n=int(1,9)", "act=relu,tanh", "x=5"])
    for params in tried(space, 5):
        overrides = dict(text.split("=") for text in space.overrides(params))
        assert float(overrides["lr"]) == params["lr"] and 1e-4 <= params["lr"] <= 1e-1
        assert int(overrides["n"]) == params["n"]
        assert overrides["act"] == params["act"] and overrides["x"] == "5"


def test_a_finite_space_is_tried_completely_and_nothing_twice():
    space = parse_space(["a=1,2,3", "b=int(1,4)"])
    assert space.count == 12
    params = tried(space, 20, value=lambda params: int(params["a"]))
    assert len(params) == 12 and len({tuple(p.values()) for p in params}) == 12


def test_trials_depend_on_the_seed_and_on_earlier_trials_alone():
    space = parse_space(["lr=log(1e-4,1e-1)", "act=relu,tanh"])
    assert tried(space, 4, seed=3) == tried(space, 4, seed=3) != tried(space, 4, seed=4)


def test_the_sampler_learns_where_the_best_values_are():
    space = parse_space(["lr=log(1e-5,1)"])

    def distance(params):
        return abs(math.log10(params["lr"]) + 3)

    distances = [distance(params) for params in tried(space, 40, value=distance)]
    assert statistics.median(distances[-20:]) < statistics.median(distances[:10]) / 2
