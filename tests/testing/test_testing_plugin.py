"""The pytest plugin in real pytest processes: in a project that uses it, and in one that does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast

pytest_plugins = ["pytester"]

SOURCE = Path(holdfast.__file__).parent
ROOT = Path(__file__).parents[2]
ENTRY_POINT = "[pytest11]\nholdfast = holdfast.testing.plugin\n"


@pytest.fixture
def project(pytester, monkeypatch):
    """A project in whose environment Holdfast is installed as a wheel: its files are listed, its plugin registered."""
    installed = pytester.mkdir("site-packages") / "holdfast_as_a_wheel-1.dist-info"
    installed.mkdir()
    files = [str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*.py")]
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-as-a-wheel\nVersion: 1\n")
    (installed / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (installed / "entry_points.txt").write_text(ENTRY_POINT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed.parent), str(SOURCE.parent)]))
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n")
    return pytester


OTHER_PLUGINS = ("xdist", "hypothesispytest", "anyio", "langsmith_plugin", "schemathesis")
"""What else this environment has. The project has only ours."""


def run_in(project, *arguments, beside=()):
    off = [part for name in OTHER_PLUGINS if name not in beside for part in ("-p", f"no:{name}")]
    return project.runpytest_subprocess(*off, *arguments)


def test_a_coroutine_test_with_the_virtual_clock_is_an_error_and_does_not_wait_in_real_time(project):
    project.makepyfile(
        """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_on_the_loop_of_another_plugin(virtual_clock):
            raise AssertionError("it ran")

        @pytest.mark.anyio
        async def test_by_another_fixture(virtual_run):
            raise AssertionError("it ran")

        class TestGrouped:
            @pytest.mark.anyio
            async def test_a_method(self, virtual_clock):
                raise AssertionError("it ran")

        @pytest.mark.anyio
        async def test_in_real_time(recorded_events):
            assert not list(recorded_events)

        def test_plain(virtual_clock, virtual_run):
            async def main():
                return "done"

            assert virtual_run(main()) == "done"
        """
    )
    result = run_in(project, beside=("anyio",))
    result.assert_outcomes(passed=2, errors=3)
    result.stdout.fnmatch_lines(["*`virtual_clock` needs a plain `def` test*", "*virtual_run(main())*"])
    assert "it ran" not in result.stdout.str()


def test_the_fixtures_and_the_marker_work_together(project):
    project.makepyfile(
        """
        import asyncio
        import pytest
        from holdfast import Circuit, Policy, recover
        from holdfast.events import Retry

        @recover("claude")
        async def ask(calls):
            return await calls.acall("q")

        @pytest.mark.faults("429;retry-after=110, 503, ok:hello", seed=1)
        def test_an_async_recovery(virtual_clock, virtual_run, faults, recorded_events):
            assert virtual_run(ask(faults)) == "hello"
            recorded_events.assert_recovered(attempts=3)
            waited = sum(event.delay for event in recorded_events.of(Retry))
            # After a 429 the calls are paced: the last one may wait a little longer than its delay.
            assert 110 < waited <= virtual_clock.monotonic() < waited + 1
            faults.assert_finished()

        @pytest.mark.faults("429;retry-after=110, ok:hello")
        def test_a_blocking_recovery(virtual_clock, faults, recorded_events):
            assert recover("claude").call(faults) == "hello"
            assert virtual_clock.monotonic() == 110
            recorded_events.assert_recovered(attempts=2)

        waits = []

        @pytest.mark.parametrize("_", range(2))
        @pytest.mark.faults("503, 503, ok", seed=7)
        def test_the_same_seed_waits_the_same(_, virtual_clock, virtual_run, faults):
            virtual_run(ask(faults))
            waits.append(virtual_clock.monotonic())
            assert set(waits) == {waits[0]}

        strict = recover("strict", Policy(attempts=3, circuit=Circuit(), wait_for_circuit=False))

        @pytest.mark.parametrize("_", range(7))
        @pytest.mark.faults("503*3")
        def test_no_circuit_opens_from_one_test_to_the_next(_, virtual_run, faults):
            with pytest.raises(Exception, match="HTTP 503"):
                virtual_run(strict.call(faults.acall))
            faults.assert_finished()

        @pytest.mark.faults(["ok"])
        class TestInAClass:
            def test_a_list_of_the_class(self, faults):
                assert faults() is None

            @pytest.mark.faults("ok:nearer")
            def test_the_nearest_marker_counts(self, faults):
                assert faults() == "nearer"

        def test_one_clock_serves_all_of_a_test(virtual_clock, virtual_run):
            virtual_run(asyncio.sleep(5))
            virtual_run(asyncio.sleep(5))
            assert virtual_clock.monotonic() == 10

        def test_each_test_has_its_own(virtual_clock, recorded_events):
            assert (virtual_clock.monotonic(), len(recorded_events)) == (0, 0)

        def test_without_a_virtual_clock_time_is_real(recorded_events, holdfast_runtime):
            assert holdfast_runtime.clock.wall() > 1_750_000_000
            assert recover("claude").call(lambda: 42) == 42
            assert recorded_events.types == ["attempt-started", "attempt-ended"]
        """
    )
    run_in(project).assert_outcomes(passed=16)


FAILING_TESTS = """
    import pytest
    from holdfast import Circuit, CircuitOpenError, Policy, Runtime, recover

    POLICY = Policy(attempts=1, circuit=Circuit(failures=3), wait_for_circuit=False)
    RUNTIME = Runtime()

    @recover("claude", POLICY)
    def ask():
        raise ConnectionResetError

    @recover("claude", POLICY, runtime=RUNTIME)
    async def ask_async():
        raise ConnectionResetError

    @recover(policy=POLICY)
    def ask_without_a_target():
        raise ConnectionResetError

    @pytest.mark.parametrize("_", range(3))
    def test_fails_three_times(_):
        import asyncio
        for _ in range(3):
            with pytest.raises(ConnectionResetError):
                ask()
            with pytest.raises(ConnectionResetError):
                asyncio.run(ask_async())
            with pytest.raises(ConnectionResetError):
                ask_without_a_target()
        for rejected in (ask, lambda: asyncio.run(ask_async()), ask_without_a_target):
            with pytest.raises(CircuitOpenError):
                rejected()
    """


def test_FR19_a_failing_test_does_not_open_the_circuit_of_the_next(project):
    project.makepyfile(FAILING_TESTS)
    run_in(project).assert_outcomes(passed=3)


def test_FR19_tests_share_circuits_if_the_project_wants_it(project):
    project.makepyfile(FAILING_TESTS)
    run_in(project, "-o", "holdfast_isolate=false").assert_outcomes(passed=1, failed=2)


def test_FR19_settings_and_subscriptions_outlive_a_test(project):
    project.makepyfile(
        """
        import pytest
        from holdfast import Policy, recover
        from holdfast.runtime.runtime import default_runtime

        seen = []

        @pytest.fixture(scope="module", autouse=True)
        def configured():
            runtime = default_runtime()
            runtime.configure(Policy(attempts=1), {})
            with runtime.on(seen.append):
                yield

        @pytest.mark.parametrize("_", range(2))
        def test_both(_):
            seen.clear()
            with pytest.raises(ConnectionResetError):
                recover("claude").call(fail)
            assert [event.attempts for event in seen if hasattr(event, "attempts")] == [1]

        def fail():
            raise ConnectionResetError
        """
    )
    run_in(project).assert_outcomes(passed=2)


def test_the_header_and_the_error_name_the_file_whose_settings_a_test_has(project):
    (project.path / "holdfast.toml").write_text("[policy]\nattempts = 1\n")
    project.makepyfile(
        """
        from holdfast import recover

        def test_it(virtual_run):
            async def fail():
                raise ConnectionResetError

            virtual_run(recover("claude").call(fail))
        """
    )
    done = run_in(project)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["holdfast: settings from *holdfast.toml (HOLDFAST_CONFIG=none: the defaults)"])
    done.stdout.fnmatch_lines(["*all attempts were used (attempts=1, from *holdfast.toml)*"])


def test_a_test_has_the_settings_that_the_program_has(project):
    """A test under `run` or `virtual_run` that ignored holdfast.toml would check another policy than production has."""
    (project.path / "holdfast.toml").write_text("[policy]\nattempts = 1\n[targets.batch]\nattempts = 2\n")
    project.makepyfile(
        """
        import pytest
        from holdfast import recover
        from holdfast.testing import ScriptedHTTPError, run, script

        @pytest.mark.parametrize(("target", "attempts"), [("weather", 1), ("batch", 2)])
        def test_run(target, attempts):
            calls = script("503*9")
            with pytest.raises(ScriptedHTTPError):
                run(recover(target).call(calls.acall))
            assert calls.calls == attempts

        @pytest.mark.faults("503*9")
        def test_virtual_run(faults, virtual_run):
            with pytest.raises(ScriptedHTTPError):
                virtual_run(recover("weather").call(faults.acall))
            assert faults.calls == 1
        """
    )
    run_in(project).assert_outcomes(passed=3)


def test_mistakes_have_clear_messages(project):
    project.makepyfile(
        """
        import pytest

        def test_no_marker(faults): ...

        @pytest.mark.faults("429, nonsense")
        def test_bad_script(faults): ...

        def test_no_recovery(recorded_events):
            recorded_events.assert_recovered(attempts=3)
        """
    )
    result = run_in(project)
    result.assert_outcomes(errors=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            '*the fixture `faults` needs a script: @pytest.mark.faults("429, ok")*',
            "*script?1?: expected ok, ok:VALUE, a status*, got 'nonsense'*",
            "*expected a recovery after 3 attempts, got no end of a recovery; seen:*",
        ]
    )
    # The line that failed is the test's own, not one of ours.
    result.stdout.no_fnmatch_line("*capture.py:*")


def test_a_project_that_does_not_use_the_plugin_is_not_affected(project):
    """Its own fixtures with our names win, almost nothing is imported, and there is no warning."""
    project.makeconftest(
        """
        import pytest

        @pytest.fixture
        def faults():
            return "the project's own"
        """
    )
    project.makepyfile(
        """
        import sys

        def test_of_the_project(faults):
            assert faults == "the project's own"
            ours = sorted(name for name in sys.modules if name.startswith("holdfast"))
            assert ours == ["holdfast", "holdfast._lazy", "holdfast._version", "holdfast.testing", "holdfast.testing.plugin"]
            assert "asyncio" not in sys.modules
        """
    )
    run_in(project, "--assert=rewrite").assert_outcomes(passed=1)


def test_it_can_be_turned_off(project):
    project.makepyfile(
        """
        import sys

        def test_without():
            assert "holdfast.testing.plugin" not in sys.modules
        """
    )
    run_in(project, "-p", "no:holdfast").assert_outcomes(passed=1)


def test_pytest_explains_it(project):
    project.makepyfile("")
    run_in(project, "--markers").stdout.fnmatch_lines(["@pytest.mark.faults(script, [*], seed=0): the failures that*"])
    shown = run_in(project, "--fixtures").stdout
    for fixture in ("faults", "holdfast_runtime", "recorded_events", "virtual_clock", "virtual_run"):
        shown.fnmatch_lines([f"{fixture} -- *plugin.py:*"])
    shown.no_fnmatch_line("*no docstring available*")


def test_loading_it_imports_almost_nothing():
    program = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import holdfast.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [
        "holdfast",
        "holdfast._lazy",
        "holdfast._version",
        "holdfast.testing",
        "holdfast.testing.plugin",
    ]


def test_the_wheel_registers_it():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["entry-points"]["pytest11"] == {"holdfast": "holdfast.testing.plugin"}


def test_the_tests_that_the_how_to_page_shows_pass(project):
    page = (ROOT / "docs" / "how-to" / "test-your-recovery.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    project.makepyfile("\n".join(shown))
    run_in(project).assert_outcomes(passed=page.count("\ndef test_"))


def test_the_fault_provider_plays_the_markers_script(project):
    project.makepyfile(
        """
        import urllib.request
        import urllib.error
        import pytest

        def ask(provider):
            request = urllib.request.Request(f"{provider.url}/v1/models", headers={"x-api-key": "k"})
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        @pytest.mark.faults("429, 503", seed=1)
        def test_a_script(fault_provider):
            assert [ask(fault_provider) for _ in range(3)] == [429, 503, 200]
            assert fault_provider.counters.received == 3

        def test_no_script(fault_provider):
            assert ask(fault_provider) == 200
        """
    )
    run_in(project).assert_outcomes(passed=2)
