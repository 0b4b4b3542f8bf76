"""The plans of clients, transports, functions and managers: kept by key, made again after a change, bounded."""

from __future__ import annotations

from recover_kit import World

from holdfast import Policy
from holdfast.runtime.operation.plan import MAX_PLANS, Plan, PlanCache


def cache_of(world: World) -> tuple[PlanCache, list[tuple[str, int]]]:
    made: list[tuple[str, int]] = []

    def make(name: str, number: int) -> Plan:
        made.append((name, number))
        return Plan(
            name, world.runtime.policy_for(Plan(name, None, runtime=world.runtime).target), runtime=world.runtime
        )

    return PlanCache(make), made


def test_a_plan_is_made_once_for_each_key() -> None:
    plans, made = cache_of(World())
    assert plans.get("a", 1) is plans.get("a", 1)
    assert plans.get("a", 2) is not plans.get("a", 1)
    assert made == [("a", 1), ("a", 2)]


def test_after_a_change_of_the_settings_it_is_made_again() -> None:
    world = World()
    plans, made = cache_of(world)
    before = plans.get("a", 1)
    world.runtime.configure(Policy(attempts=7), {})
    assert plans.get("a", 1) is not before
    assert plans.get("a", 1).policy.attempts == 7
    assert made == [("a", 1)] * 2


def test_memory_stays_bounded() -> None:
    plans, made = cache_of(World())
    for number in range(MAX_PLANS + 1):
        plans.get("a", number)
    assert len(plans._plans) == 1
    plans.get("a", 0)
    assert len(made) == MAX_PLANS + 2
