"""Small plans and windows made by hand, and a stage on which whole studies are run."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from autotune.engines import Capabilities, Engine, EngineOptions, load_engine
from autotune.knowledge import Knowledge
from autotune.plan import Request, make_plan
from autotune.records import (
    Arm,
    Block,
    Message,
    MethodSpace,
    Plan,
    Prediction,
    Prompt,
    Recommendation,
    RequestResult,
    Settings,
    Target,
    Window,
    Workload,
)
from autotune.store import open_study
from autotune.tuner import tune

PUBLISHED = Path(__file__).parent.parent / "studies/published"
PROMPTS = tuple(Prompt(id=f"p{i}", messages=(Message(role="user", content="?"),)) for i in range(2))


def plan_of(loads: tuple[int | None, ...] = (8,), /, settings=None, **methods: Any) -> Plan:
    """plan_of((1, 8), mtp=[1, 2, 3]); `settings` are fields of Settings."""
    return Plan(
        engine="by hand",
        target=Target(model="acme/small"),
        workload=Workload(name="by hand", prompts=PROMPTS),
        spaces=tuple(MethodSpace(method=m, lengths=tuple(n)) for m, n in methods.items()),
        concurrencies=loads,
        settings=Settings(**(settings or {})),
        sends_prompts=False,
    )


def window(
    method: str, n: int, rate: float, load: int | None = 8, block: str = "search:0", **more: Any
) -> Window:
    at = "any" if load is None else load
    return Window(
        method=method,
        num_speculative_tokens=n,
        live=method != "none",
        block=f"{block}:c{at}",
        concurrency=load,
        output_tokens_per_second=rate,
        **more,
    )


def knows(plan: Plan, windows: Iterable[Window]) -> Knowledge:
    knowledge = Knowledge(plan)
    for each in windows:
        knowledge.add(each)
    return knowledge


class Told(Knowledge):
    """Knowledge whose predictions are given: {(method, N): (ln speedup, sd)}, at every load.

    A key (method, N, load) overrides one load. `measured` names what has been measured, just as
    it was predicted.
    """

    def __init__(
        self,
        plan: Plan,
        predictions: dict[tuple[Any, ...], tuple[float, float]],
        measured: Iterable[tuple[str, int]] = (),
        blocks: int = 1,
    ) -> None:
        super().__init__(plan)
        self.predictions = predictions
        for load in plan.concurrencies:
            for index in range(blocks):
                self.add(window("none", 0, 100.0, load, f"search:{index}"))
                for method, n in measured:
                    rate = 100.0 * math.exp(self.predict(method, n, load).log_speedup)
                    self.add(window(method, n, rate, load, f"search:{index}"))

    def predict(self, method: str, n: int, load: int | None) -> Prediction:
        table = self.predictions
        mean, sd = table.get((method, n, load)) or table[method, n]
        return Prediction(
            method=method,
            num_speculative_tokens=n,
            concurrency=load,
            log_speedup=mean,
            log_speedup_sd=sd,
        )


# ----------------------------------------------------------------------------- whole studies


class Watched:
    """An engine that notes every start and every window; `before` is called ahead of each."""

    def __init__(self, engine: Engine, before: Callable[[str], None] = lambda what: None) -> None:
        self.engine = engine
        self.before = before
        self.starts: list[Arm] = []
        self.windows: list[tuple[str, int, str]] = []  # (arm key, N, block key)
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def open(self, target: Target, arm: Arm, progress: Any) -> Any:
        self.before("start")
        self.starts.append(arm)
        return WatchedSession(self, arm, self.engine.open(target, arm, progress))


class WatchedSession:
    def __init__(self, watched: Watched, arm: Arm, session: Any) -> None:
        self._watched, self._arm, self._session = watched, arm, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, block: Block) -> Window:
        self._watched.before("window")
        measured = self._session.run(block)
        self._watched.windows.append((self._arm.key, measured.num_speculative_tokens, block.key))
        return measured

    def close(self) -> None:
        self._watched.closed += 1
        self._session.close()


class Stage:
    """Runs studies in one database; `empty` is copied, as making one takes longer than a study."""

    def __init__(self, folder: Path, empty: Path) -> None:
        self.file = Path(shutil.copy(empty, folder / "study.db"))
        self.url = f"sqlite:///{self.file}"
        self.said: list[str] = []

    def tune(
        self,
        engine: Engine,
        request: Request | None = None,
        *,
        fresh: bool = False,
        plan: Plan | None = None,
    ) -> Recommendation:
        plan = plan or make_plan(request or Request(), engine)
        with open_study(self.url, plan, fresh=fresh) as study:
            return tune(plan, engine, study, self.said.append)


def replay(path: Path | str, **options: Any) -> Engine:
    return load_engine("replay", EngineOptions(recording=str(path), **options))


def simulate(scenario: Path | str, **options: Any) -> Engine:
    return load_engine("simulate", EngineOptions(simulation=str(scenario), **options))


class Scripted:
    """An engine without noise: `rates[method, N]` tokens per second, the same in every block.

    `react(arm, n, block, window)` may return another window, or raise what an engine would raise;
    `start(arm)` may raise EngineStartError.
    """

    name = "by hand"

    def __init__(
        self,
        rates: dict[tuple[str, int], float],
        react: Callable[[Arm, int, Block, Window], Window | None] = lambda *what: None,
        start: Callable[[Arm], None] = lambda arm: None,
        outputs: bool = False,
        warmup: bool = False,
    ) -> None:
        self.rates, self.react, self.start = rates, react, start
        self.outputs, self.warmup = outputs, warmup

    def open(self, target: Target, arm: Arm, progress: Any) -> ScriptedSession:
        self.start(arm)
        return ScriptedSession(self, arm)

    def command(self, target: Target, arm: Arm) -> str:
        return f"by hand {target.model} {arm.key}"

    def why_not_live(self, target: Target, space: Any) -> str | None:
        return None

    def estimated_start_seconds(self) -> float:
        return 100.0

    def offer(self) -> None:
        return None

    def identity(self) -> dict[str, Any]:
        return {}


class ScriptedSession:
    start_seconds = 100.0

    def __init__(self, engine: Scripted, arm: Arm) -> None:
        self.capabilities = Capabilities(
            live_n=arm.live,
            step_timing=False,
            counters=False,
            outputs=engine.outputs,
            warmup=engine.warmup,
        )
        self._engine, self._arm, self._n = engine, arm, arm.num_speculative_tokens

    def set_num_speculative_tokens(self, n: int) -> None:
        assert self._arm.live
        self._n = n

    def run(self, block: Block) -> Window:
        texts = [RequestResult(prompt_id=p.id, text=f"to {p.id}") for p in block.prompts]
        measured = Window(
            method=self._arm.method,
            num_speculative_tokens=self._n,
            live=self._arm.live,
            block=block.key,
            concurrency=block.concurrency,
            duration_seconds=10.0,
            output_tokens_per_second=self._engine.rates[self._arm.method, self._n],
            acceptance_length=1 + 0.6 * self._n**0.8 if self._n else None,
            requests=tuple(texts) if self._engine.outputs else (),
        )
        return self._engine.react(self._arm, self._n, block, measured) or measured

    def close(self) -> None:
        pass
