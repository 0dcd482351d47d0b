"""SpectuneSampler: asked by the tuner, and in anybody's study.optimize, from the trials alone."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import statistics
import threading

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from tuner_samples import PUBLISHED, Told, knows, plan_of, simulate, window

from autotune.errors import SamplerError
from autotune.priors import table
from autotune.records import MethodSpace, Prior
from autotune.sampler import PROPOSAL, SpectuneSampler
from autotune.sampler_inputs import as_spaces
from autotune.search import Prices, Search, candidate_of, is_suggested, suggest
from autotune.trials import TrialKnowledge

S01 = sorted(PUBLISHED.glob("s01-*.json"))
N_OF_MTP = "mtp.num_speculative_tokens"


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def study_of(sampler, direction="maximize", **more):
    return optuna.create_study(direction=direction, sampler=sampler, **more)


def candidates(study, spaces):
    """(method, N) of every trial, None where it named none."""
    return [candidate_of(trial.params, as_spaces(spaces)) for trial in study.trials]


def objective_of(values, spaces, tell=lambda trial, key: None):
    """Values by (method, N); an exception among them is raised."""

    def objective(trial):
        key = suggest(trial, as_spaces(spaces))
        tell(trial, key)
        if isinstance(values[key], Exception):
            raise values[key]
        return values[key]

    return objective


# ------------------------------------------------------------------ asked for a search's proposal


def asked(told, running=None):
    search = Search(told, Prices(start_seconds=100.0, probe_seconds=10.0), starts_left=9)
    search.open_method = running
    return study_of(SpectuneSampler.asking(search))


def test_optuna_is_given_the_proposal():
    told = Told(
        plan_of(mtp=[1, 2], ngram=[3, 4]),
        {("mtp", 1): (0.1, 0.1), ("mtp", 2): (0.2, 0.1), ("ngram", 3): (0.9, 0.1),
         ("ngram", 4): (0.3, 0.1)},
    )  # fmt: skip
    trial = asked(told).ask()
    assert not is_suggested(trial, told.plan.spaces)
    assert suggest(trial, told.plan.spaces) == ("ngram", 3)
    assert trial.params == {"method": "ngram", "ngram.num_speculative_tokens": 3}
    assert is_suggested(trial, told.plan.spaces)


@pytest.mark.parametrize("lengths", [[7], [6, 7]])
def test_parameters_without_a_choice(lengths):
    told = Told(plan_of(mtp=lengths), {("mtp", n): (0.1 * n, 0.1) for n in lengths})
    trial = asked(told).ask()
    assert suggest(trial, told.plan.spaces) == ("mtp", 7)
    assert is_suggested(trial, told.plan.spaces)


def test_nothing_to_propose_prunes_the_trial():
    told = Told(
        plan_of(mtp=[1, 2]),
        {("mtp", 1): (-1, 0.01), ("mtp", 2): (-1, 0.01)},
        measured=[("mtp", 1)],
    )
    with pytest.raises(optuna.TrialPruned, match="nothing is left that could win"):
        suggest(asked(told).ask(), told.plan.spaces)


def test_every_trial_gets_its_own_proposal():
    told = Told(plan_of(mtp=[1, 2, 3]), {("mtp", n): (0.1 * n, 0.2) for n in (1, 2, 3)})
    trials = asked(told)
    for expected in (3, 2, 1):
        trial = trials.ask()
        method, n = suggest(trial, told.plan.spaces)
        assert n == expected
        told.add(window(method, n, 100.0))
        trials.tell(trial, 1.0)


# --------------------------------------------------------------------------- recorded objectives


class Recorded:
    """One published panel as an objective. It also tells its acceptance, as a real one would."""

    def __init__(self, path, told=True):
        document = json.loads(path.read_text())
        self.base = document["baseline"][0]["output_tokens_per_second"]
        self.points = {(p["method"], p["num_speculative_tokens"]): p for p in document["points"]}
        self.spaces = {}
        for method, n in sorted(self.points):
            self.spaces.setdefault(method, []).append(n)
        self.rates = {key: p["output_tokens_per_second"] for key, p in self.points.items()}
        self.told = told

    def attributes(self, trial, key):
        point = self.points[key]
        trial.set_user_attr("acceptance_length", point["mean_acceptance_length"])
        trial.set_user_attr("per_position_acceptance_rates", point["per_position_acceptance"])

    def speedups(self):
        values = {key: rate / self.base for key, rate in self.rates.items()}
        return objective_of(values, self.spaces, *([self.attributes] if self.told else []))

    def throughputs(self):
        return objective_of(self.rates, self.spaces, *([self.attributes] if self.told else []))

    def regret(self, study):
        return 1 - max(1.0, study.best_value) / max(1.0, max(self.rates.values()) / self.base)


def test_published_panels_are_decided_in_fewer_trials_than_candidates():
    regrets, trials, everything = [], 0, 0
    for path in S01:
        panel = Recorded(path)
        study = study_of(SpectuneSampler(panel.spaces))
        study.optimize(panel.speedups(), n_trials=100)
        tried = candidates(study, panel.spaces)
        assert len(tried) == len(set(tried))
        assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
        assert study.sampler.is_exhausted(study)
        regrets.append(panel.regret(study))
        trials, everything = trials + len(tried), everything + len(panel.rates)
    assert len(regrets) == 24
    assert statistics.fmean(regrets) <= 0.005
    assert max(regrets) <= 0.03
    assert trials <= 0.7 * everything


def test_without_acceptance_it_decides_from_the_values_alone():
    for path in S01[:8]:
        panel = Recorded(path, told=False)
        study = study_of(SpectuneSampler(panel.spaces))
        study.optimize(panel.speedups(), n_trials=100)
        assert panel.regret(study) <= 0.03
        assert len(study.trials) <= len(panel.rates)


def test_a_throughput_is_as_good_as_a_speedup_where_the_baseline_is_known():
    panel = Recorded(S01[0])
    one = study_of(SpectuneSampler(panel.spaces))
    one.optimize(panel.speedups())
    other = study_of(SpectuneSampler(panel.spaces, baseline=panel.base))
    other.optimize(panel.throughputs())
    assert candidates(one, panel.spaces) == candidates(other, panel.spaces)
    assert other.best_value == pytest.approx(one.best_value * panel.base)


def test_windows_and_trials_lead_to_the_same_decisions():
    """The tuner's way, over windows, and anybody's, over trials: one proposal after the other."""
    panel = Recorded(S01[4])
    spaces = as_spaces(panel.spaces)
    plan = plan_of((None,), settings={"search_blocks": 1}, mtp=[1]).model_copy(
        update={"spaces": spaces}
    )
    knowledge = knows(plan, [window("none", 0, panel.base, load=None)])
    search = Search(knowledge, Prices(start_seconds=0.0, probe_seconds=1.0), starts_left=99)
    study = study_of(SpectuneSampler(spaces))
    while (expected := search.propose()) is not None:
        trial = study.ask()
        assert suggest(trial, spaces) == expected
        point = panel.points[expected]
        told = {
            "acceptance_length": point["mean_acceptance_length"],
            "per_position_acceptance_rates": tuple(point["per_position_acceptance"]),
        }
        knowledge.add(window(*expected, panel.rates[expected], load=None, **told))
        panel.attributes(trial, expected)
        study.tell(trial, panel.rates[expected] / panel.base)
    assert study.sampler.is_exhausted(study)
    assert 1 < len(study.trials) < len(panel.rates)


# -------------------------------------------------------------------------- the simulator's optimum


def simulated(name):
    """(engine, spaces, loads, objective): noise-free speed-ups, the geometric mean over loads."""
    engine = simulate(name)
    offer = engine.offer()
    loads = offer.concurrencies
    base = {load: engine.truth("none", 0, load) for load in loads}

    def objective(trial):
        method, n = suggest(trial, offer.spaces)
        by_load = {load: engine.truth(method, n, load) / base[load] for load in loads}
        rates = engine.scenario.acceptance_rates(method, n)
        trial.set_user_attr("per_position_acceptance_rates", rates)
        trial.set_user_attr("values_by_load", {str(load): v for load, v in by_load.items()})
        return statistics.geometric_mean(by_load.values())

    return engine, offer.spaces, loads, objective


@pytest.mark.parametrize("name", ["dense-chat", "edge", "tie", "moe-low-load"])
def test_the_simulators_optimum_is_found(name):
    engine, spaces, loads, objective = simulated(name)
    study = study_of(SpectuneSampler(spaces, concurrencies=loads))
    study.optimize(objective)
    best = max(
        statistics.geometric_mean(
            engine.truth(space.method, n, c) / engine.truth("none", 0, c) for c in loads
        )
        for space in spaces
        for n in space.lengths
    )
    assert study.best_value >= 0.98 * best
    assert len(study.trials) <= sum(len(space.lengths) for space in spaces)


def test_every_load_has_its_winner():
    """Three loads with winners of their own: each is tried though none is best on average."""
    engine, spaces, loads, objective = simulated("three-loads")
    study = study_of(SpectuneSampler(spaces, concurrencies=loads))
    study.optimize(objective)
    for load in loads:
        seen = [trial.user_attrs["values_by_load"][str(load)] for trial in study.trials]
        best = engine.best(load)[2] / engine.truth("none", 0, load)
        assert max(seen) >= 0.97 * best


def test_no_gain_ends_early():
    _, spaces, loads, objective = simulated("no-gain")
    study = study_of(SpectuneSampler(spaces, concurrencies=loads))
    study.optimize(objective)
    assert study.best_value < 1
    assert len(study.trials) < sum(len(space.lengths) for space in spaces)


# ------------------------------------------------------------------------------------ properties


TABLES = st.dictionaries(
    st.sampled_from(["mtp", "ngram", "eagle3"]),
    st.dictionaries(st.integers(1, 12), st.floats(0.3, 3.0), min_size=1, max_size=6),
    min_size=1,
)


@settings(max_examples=30)
@given(TABLES)
def test_no_candidate_twice_and_always_an_end(table):
    spaces = {method: list(values) for method, values in table.items()}
    values = {(method, n): v for method, row in table.items() for n, v in row.items()}
    study = study_of(SpectuneSampler(spaces))
    study.optimize(objective_of(values, spaces), n_trials=100)
    tried = candidates(study, spaces)
    assert len(tried) == len(set(tried)) <= len(values)
    assert set(tried) <= set(values)
    assert study.sampler.is_exhausted(study)


@settings(max_examples=30)
@given(TABLES, st.randoms(use_true_random=False))
def test_failures_of_any_kind_are_survived(table, rng):
    spaces = {method: list(values) for method, values in table.items()}
    kinds = [RuntimeError("died"), optuna.TrialPruned("slow"), math.nan, 0.0, math.inf]
    values = {
        (method, n): rng.choice([*kinds, v])
        for method, row in table.items()
        for n, v in row.items()
    }
    study = study_of(SpectuneSampler(spaces))
    study.optimize(objective_of(values, spaces), n_trials=100, catch=(RuntimeError,))
    tried = candidates(study, spaces)
    assert len(tried) == len(set(tried)) <= len(values)


# -------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("failure", [RuntimeError("died"), optuna.TrialPruned("slow"), 0.0])
def test_a_method_that_keeps_failing_is_given_up(failure):
    """Its smallest N is asked after the first failure; then none of its six others."""
    spaces = {"mtp": range(1, 9), "ngram": (2, 3)}
    values = {("mtp", n): failure for n in range(1, 9)} | {("ngram", 2): 1.2, ("ngram", 3): 1.1}
    study = study_of(SpectuneSampler(spaces))
    study.optimize(objective_of(values, spaces), n_trials=50, catch=(RuntimeError,))
    tried = [key for key in candidates(study, spaces) if key[0] == "mtp"]
    assert len(tried) == 2
    assert tried[1] == ("mtp", 1)
    assert study.best_params["method"] == "ngram"


def test_what_worked_stays_when_a_repeat_fails():
    spaces = {"mtp": (1, 2)}
    reader = TrialKnowledge(as_spaces(spaces), {None: 1.0}, tie_margin=0.01)
    for number, value in enumerate([1.5, None]):
        reader.take_in(finished(number, "mtp", 2), value)
    assert reader.knowledge.alive("mtp", 2)
    for number, value in enumerate([None, 1.4], start=2):
        reader.take_in(finished(number, "mtp", 1), value)
    assert reader.knowledge.alive("mtp", 1)
    assert reader.knowledge.log_ratios("mtp", 1, None) == pytest.approx([math.log(1.4)])


def finished(number, method, n, **attributes):
    kind = optuna.distributions.CategoricalDistribution
    trial = optuna.create_trial(
        params={"method": method, f"{method}.num_speculative_tokens": n},
        distributions={
            "method": kind([method]), f"{method}.num_speculative_tokens": kind([n])},
        value=1.0,
        user_attrs=attributes,
    )  # fmt: skip
    trial.number = number
    return trial


def test_repeated_trials_are_pooled_and_show_the_noise():
    """Three at 1.5 times 1, e^0.1, e^-0.1: 2 degrees of freedom beside 4 assumed at 2 %."""
    reader = TrialKnowledge(as_spaces({"mtp": (1, 2)}), {None: 1.0}, tie_margin=0.01)
    for number, off in enumerate([0.0, 0.1, -0.1]):
        reader.take_in(finished(number, "mtp", 2), 1.5 * math.exp(off))
    assert reader.knowledge.blocks_done("mtp", 2) == 3
    found = reader.knowledge.measurement("mtp", 2, None)
    assert found.log_speedup == pytest.approx(math.log(1.5))
    noise = math.sqrt((4 * 0.02**2 + 2 * 0.1**2) / 6)
    assert reader.knowledge.noise == pytest.approx(noise)


# ----------------------------------------------------------------------------- parallel workers


@pytest.mark.parametrize("n_jobs", [2, 4])
def test_workers_in_threads_never_measure_the_same(n_jobs):
    """All first trials wait for each other, so they are in flight together."""
    spaces = {"mtp": range(1, 7), "ngram": range(2, 6)}
    together, running, most = threading.Barrier(n_jobs), set(), []

    def tell(trial, key):
        assert key not in running
        running.add(key)
        if trial.number < n_jobs:
            together.wait(timeout=60)
            most.append(len(running))
        running.discard(key)

    values = {(m, n): 1 + 0.1 * n for m, lengths in spaces.items() for n in lengths}
    study = study_of(SpectuneSampler(spaces))
    study.optimize(objective_of(values, spaces, tell), n_trials=60, n_jobs=n_jobs)
    tried = [key for key in candidates(study, spaces) if key is not None]
    assert len(tried) == len(set(tried))
    assert max(most) == n_jobs


def test_another_workers_running_trial_is_taken(tmp_path):
    """Two processes' worth of samplers on one storage; one knows the other by its trial only."""
    spaces = {"mtp": (1, 2, 3)}
    url = f"sqlite:///{tmp_path}/trials.db"
    studies = [
        study_of(SpectuneSampler(spaces), storage=url, study_name="s", load_if_exists=True)
        for _ in range(2)
    ]
    proposed = [suggest(study.ask(), as_spaces(spaces)) for study in (*studies, studies[0])]
    assert sorted(proposed) == [("mtp", 1), ("mtp", 2), ("mtp", 3)]
    assert studies[1].sampler.is_exhausted(studies[1])


def test_a_claim_is_seen_before_both_parameters_are(tmp_path):
    spaces = {"mtp": (1, 2), "ngram": (2, 3)}
    study = study_of(SpectuneSampler(spaces))
    first = study.ask()
    first.suggest_categorical("method", list(spaces))  # and no N yet
    key = suggest(study.ask(), as_spaces(spaces))
    claimed = study.trials[0].system_attrs[PROPOSAL]
    assert (*key, True) != tuple(claimed)
    assert claimed[2] is True


@pytest.mark.parametrize("ends", [False, True])
def test_what_another_takes_while_this_one_decides(monkeypatch, ends):
    """Another process asks, and may even be done, between our decision and our claim."""
    spaces = {"mtp": (1, 2, 3)}
    study = study_of(SpectuneSampler(spaces))
    other = optuna.load_study(
        study_name=study.study_name, storage=study._storage, sampler=SpectuneSampler(spaces)
    )
    propose, taken = Search.propose, []

    def interrupted(search):
        key = propose(search)
        if not taken:
            taken.append(key)
            trial = other.ask()
            assert suggest(trial, as_spaces(spaces)) == key
            if ends:
                other.tell(trial, 1.5)
        return key

    monkeypatch.setattr(Search, "propose", interrupted)
    assert suggest(study.ask(), as_spaces(spaces)) != taken[0]


# ------------------------------------------------------------------------------------- the end


def test_a_finished_study_asks_for_nothing_more():
    panel = Recorded(S01[0])
    study = study_of(SpectuneSampler(panel.spaces))
    study.optimize(panel.speedups())
    measured = len(study.trials)
    study.optimize(panel.speedups(), n_trials=20)
    assert [t.state for t in study.trials[measured:]] == [TrialState.PRUNED]  # and then it ended
    assert study.trials[-1].params == {}


def test_a_stored_study_goes_on_with_a_new_sampler(tmp_path):
    panel = Recorded(S01[4])
    whole = study_of(SpectuneSampler(panel.spaces))
    whole.optimize(panel.speedups())
    for count in (2, 100):
        study = study_of(
            SpectuneSampler(panel.spaces), storage=f"sqlite:///{tmp_path}/trials.db",
            study_name="s", load_if_exists=True,
        )  # fmt: skip
        study.optimize(panel.speedups(), n_trials=count)
    assert candidates(study, panel.spaces) == candidates(whole, panel.spaces)


def test_one_sampler_may_serve_one_study_after_another():
    panel = Recorded(S01[0])
    sampler = SpectuneSampler(panel.spaces)
    studies = [study_of(sampler), study_of(sampler)]
    for study in studies:
        study.optimize(panel.speedups())
    assert candidates(studies[0], panel.spaces) == candidates(studies[1], panel.spaces)


def test_starts_that_cost_are_saved():
    """Going to another method costs a hundred measurements: one is asked out before the next."""
    panel = Recorded(S01[4])
    study = study_of(SpectuneSampler(panel.spaces, start_seconds=100.0))
    study.optimize(panel.speedups())
    methods = [method for method, _ in candidates(study, panel.spaces)]
    changes = sum(a != b for a, b in itertools.pairwise(methods))
    assert changes == len(set(methods)) - 1
    assert panel.regret(study) <= 0.03


# ---------------------------------------------------------------------- other parameters, a seed


def knobs(trial):
    """Speed-up of mtp N=2 is 1.8, all else less; a knob of the engine is worth most at 0.7."""
    key = suggest(trial, as_spaces({"mtp": (1, 2), "ngram": (3, 4)}))
    knob = trial.suggest_float("gpu_memory_utilization", 0.0, 1.0)
    best = {("mtp", 2): 1.8, ("mtp", 1): 1.3, ("ngram", 3): 1.0, ("ngram", 4): 0.9}[key]
    return best * math.exp(-((knob - 0.7) ** 2))


def tuned(seed, n_trials=60):
    study = study_of(SpectuneSampler({"mtp": (1, 2), "ngram": (3, 4)}, seed=seed))
    study.optimize(knobs, n_trials=n_trials)
    return study


def test_other_parameters_are_tuned_for_the_leading_candidate():
    study = tuned(seed=0)
    assert len(study.trials) == 60  # the search for method and N does not end the study
    assert study.best_params["method"] == "mtp"
    assert study.best_params[N_OF_MTP] == 2
    assert abs(study.best_params["gpu_memory_utilization"] - 0.7) < 0.1  # 0.99 of the optimum
    last = [trial.params.get(N_OF_MTP) for trial in study.trials[-20:]]
    assert last.count(2) == 20
    assert study.sampler.is_exhausted(study)  # of method and N


def test_a_seed_makes_it_repeatable():
    params = [[trial.params for trial in tuned(seed, 15).trials] for seed in (1, 1, 2)]
    assert params[0] == params[1] != params[2]


def test_reseeding_changes_the_other_parameters_only():
    studies = [study_of(SpectuneSampler({"mtp": (1, 2, 3)}, seed=3)) for _ in range(2)]
    studies[1].sampler.reseed_rng()
    asked = [study.ask() for study in studies]
    knob = [trial.suggest_float("knob", 0, 1) for trial in asked]
    assert knob[0] != knob[1]
    assert suggest(asked[0], as_spaces({"mtp": (1, 2, 3)})) == suggest(
        asked[1], as_spaces({"mtp": (1, 2, 3)})
    )


def test_another_sampler_for_the_other_parameters():
    grid = optuna.samplers.GridSampler({"knob": [0.25]})
    study = study_of(SpectuneSampler({"mtp": (1, 2)}, independent_sampler=grid))
    assert study.ask().suggest_float("knob", 0, 1) == 0.25


def test_a_pickled_sampler_decides_the_same():
    panel = Recorded(S01[4])
    study = study_of(SpectuneSampler(panel.spaces, seed=5))
    study.optimize(panel.speedups(), n_trials=3)
    copy = study_of(pickle.loads(pickle.dumps(study.sampler)))
    copy.add_trials(study.trials)
    trials = [each.ask() for each in (study, copy)]
    spaces = as_spaces(panel.spaces)
    assert suggest(trials[0], spaces) == suggest(trials[1], spaces)
    assert trials[0].suggest_float("knob", 0, 1) == trials[1].suggest_float("knob", 0, 1)


# ------------------------------------------------------------------------------ what a user fixes


def test_a_whole_candidate_may_be_enqueued():
    study = study_of(SpectuneSampler({"mtp": (1, 2, 3)}))
    study.enqueue_trial({"method": "mtp", N_OF_MTP: 1})
    assert suggest(study.ask(), as_spaces({"mtp": (1, 2, 3)})) == ("mtp", 1)


def test_of_an_enqueued_method_the_best_length_is_proposed():
    spaces = {"mtp": (1, 2, 3), "ngram": (2, 9)}
    study = study_of(SpectuneSampler(spaces))
    study.add_trial(study_trial("mtp", 2, 2.5, spaces))
    study.add_trial(study_trial("ngram", 2, 0.9, spaces))
    study.enqueue_trial({"method": "ngram"})
    assert suggest(study.ask(), as_spaces(spaces)) == ("ngram", 9)  # the one that is not known


def study_trial(method, n, value, spaces):
    kind = optuna.distributions.CategoricalDistribution
    name = f"{method}.num_speculative_tokens"
    return optuna.create_trial(
        params={"method": method, name: n},
        distributions={"method": kind(list(spaces)), name: kind(list(spaces[method]))},
        value=value,
    )


def test_lengths_may_be_suggested_as_an_integer():
    def objective(trial):
        method = trial.suggest_categorical("method", ["mtp"])
        return 1 + 0.1 * trial.suggest_int(f"{method}.num_speculative_tokens", 1, 4)

    study = study_of(SpectuneSampler({"mtp": range(1, 5)}))
    study.optimize(objective)
    assert study.best_params[N_OF_MTP] == 4


# ---------------------------------------------------------------------------------------- errors


def test_a_minimising_study_is_refused():
    spaces = {"mtp": (1, 2)}
    study = study_of(SpectuneSampler(spaces), direction="minimize")
    with pytest.raises(SamplerError, match="this study minimises") as caught:
        study.optimize(objective_of({("mtp", 1): 1.0, ("mtp", 2): 1.0}, spaces), n_trials=1)
    assert 'direction="maximize"' in caught.value.hint
    assert isinstance(caught.value, ValueError)  # what Optuna's own samplers raise


def test_several_objectives_are_refused():
    study = optuna.create_study(
        directions=["maximize", "maximize"], sampler=SpectuneSampler({"mtp": (1, 2)})
    )
    with pytest.raises(SamplerError, match="one objective"):
        suggest(study.ask(), as_spaces({"mtp": (1, 2)}))


def test_an_objective_with_other_methods_is_told_so():
    study = study_of(SpectuneSampler({"mtp": (5, 6)}))
    with pytest.raises(SamplerError, match="does not offer method = 'mtp'") as caught:
        suggest(study.ask(), as_spaces({"ngram": (1, 2), "eagle3": (1, 2)}))
    assert "same methods and lengths" in caught.value.hint
    with pytest.raises(SamplerError, match=r"mtp\.num_speculative_tokens"):
        suggest(study.ask(), as_spaces({"mtp": (1, 2)}))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({"values_by_load": {"8": 1.5}}, "loads 8, 32"),
     ({"values_by_load": {"8": 1.5, "32": "fast"}}, "loads 8, 32"),
     ({"values_by_load": {"8": 1.5, "32": -1.0}}, "leave them out"),
     ({"acceptance_length": "long"}, "leave them out"),
     ({"per_position_acceptance_rates": 0.9}, "leave them out")],
)  # fmt: skip
def test_bad_evidence_names_the_trial(attributes, message):
    def tell(trial, key):
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    spaces = {"mtp": (1, 2)}
    study = study_of(SpectuneSampler(spaces, concurrencies=(8, 32)))
    with pytest.raises(SamplerError, match="trial 0") as caught:
        study.optimize(objective_of({("mtp", n): 1.5 for n in (1, 2)}, spaces, tell), n_trials=2)
    assert message in caught.value.hint


def test_bad_evidence_of_the_past_is_left_out(caplog):
    """Nobody can mend a finished trial: a study must not end with it."""
    spaces = {"mtp": (1, 2)}
    study = study_of(SpectuneSampler(spaces, concurrencies=(8, 32)))
    kept = study_trial("mtp", 2, 1.5, spaces)
    kept.set_user_attr("values_by_load", {"8": 1.5})
    study.add_trial(kept)
    study.optimize(objective_of({("mtp", 1): 1.2, ("mtp", 2): 2.4}, spaces))
    assert candidates(study, spaces).count(("mtp", 2)) == 2  # it is not known: measured anew
    assert "left out: trial 0: values_by_load is {'8': 1.5}" in caplog.text


def test_throughputs_at_several_loads_are_told_by_load():
    spaces = {"mtp": (1, 2)}
    sampler = SpectuneSampler(spaces, concurrencies=(8, 32), baseline={8: 100.0, 32: 300.0})
    with pytest.raises(SamplerError, match="trial 0: values_by_load is None"):
        study_of(sampler).optimize(objective_of({("mtp", n): 500.0 for n in (1, 2)}, spaces))


def test_a_minimising_study_of_fixed_trials_is_not_learned_from():
    study = study_of(SpectuneSampler({"mtp": (1, 2)}), direction="minimize")
    study.enqueue_trial({"method": "mtp", N_OF_MTP: 1})
    study.optimize(objective_of({("mtp", 1): 1.0}, {"mtp": (1, 2)}), n_trials=1)
    assert study.best_value == 1.0


@pytest.mark.parametrize("baseline", [0.0, -1.0, math.nan, {8: 100.0}])
def test_a_baseline_must_be_there_for_every_load(baseline):
    with pytest.raises(SamplerError, match="no positive baseline at concurrency"):
        SpectuneSampler({"mtp": (1,)}, concurrencies=(8, 32), baseline=baseline)


def test_records_and_lengths_by_method_are_the_same():
    known = table()["dflash"]
    given = [MethodSpace(method="dflash", lengths=(7, 15), parallel=True, prior=known)]
    assert as_spaces({"dflash": (15, 7)}) == as_spaces(given) == tuple(given)
    with pytest.raises(SamplerError, match="no method"):
        SpectuneSampler({})


def test_methods_have_the_priors_of_the_table_and_records_their_own():
    spaces = as_spaces({"ngram": (2, 4), "eagle3": (3,), "unheard-of": (1,)})
    assert [s.prior for s in spaces] == [table()[m] for m in ("ngram", "eagle3", "default")]
    own = MethodSpace(method="ngram", lengths=(2,), prior=Prior(first=0.3))
    assert as_spaces([own]) == (own,)


@pytest.mark.parametrize("lengths", [(), range(1, 1), (0, 1), (-1,), (1.5,), ("x",), 3], ids=repr)
def test_lengths_that_cannot_be_are_refused(lengths):
    with pytest.raises(SamplerError, match="the lengths of mtp are") as caught:
        SpectuneSampler({"ngram": (1,), "mtp": lengths})
    assert "whole numbers from 1 on" in caught.value.hint


def test_records_with_lengths_that_cannot_be_are_refused():
    with pytest.raises(SamplerError, match=r"the lengths of mtp are \(0, 2\)"):
        SpectuneSampler([MethodSpace(method="mtp", lengths=(0, 2))])


@pytest.mark.parametrize(
    "prices",
    [{"probe_seconds": 0.0}, {"probe_seconds": -1.0}, {"start_seconds": -1.0},
     {"probe_seconds": math.nan}, {"start_seconds": math.inf}],
    ids=repr,
)  # fmt: skip
def test_prices_that_cannot_be_are_refused(prices):
    with pytest.raises(SamplerError, match="seconds is") as caught:
        SpectuneSampler({"mtp": (1, 2)}, **prices)
    assert "probe_seconds above 0" in caught.value.hint


# ------------------------------------------------------------------ what is computed once and kept


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["none", "mtp", "ngram"]), st.integers(0, 2),
            st.sampled_from([1, 8]), st.floats(50, 200), st.booleans(),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_reading_between_windows_changes_nothing(told):
    """Knowledge keeps what it computed: read or not, the same windows say the same."""
    plan = plan_of((1, 8), mtp=[1, 2], ngram=[1, 2])
    windows = [
        window(m, 0 if m == "none" else max(n, 1), rate, load, f"search:{n}")
        for m, n, load, rate, _ in told
    ]
    read, unread = knows(plan, []), knows(plan, windows)
    for each, (*_, look) in zip(windows, told, strict=True):
        read.add(each)
        if look:
            assert read.noise > 0
            assert [read.log_ratios(m, n, load) for m, n in read.candidates() for load in (1, 8)]
    assert read.noise == unread.noise
    for method, n in read.candidates():
        for load in (1, 8):
            assert read.log_ratios(method, n, load) == unread.log_ratios(method, n, load)
