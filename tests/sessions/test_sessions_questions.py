"""Questions to people: S2-19, N2-15. Each is raised once and answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed

from holdfast import Runtime, tool
from holdfast.events import SuppressedError
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.sessions import Answer, DeviceCode, Question, Session, answer, pending
from holdfast.sessions.log import QuestionRaised, TurnStarted, new_entry
from holdfast.sessions.questions.remedies import remedy_for
from holdfast.stores import Commit, MemoryStore, SqliteStore
from holdfast.testing import Capture, run

SECRET = "correct-horse-7"


class Person:
    """Answers after so many seconds, and remembers what was shown and what was taken away."""

    def __init__(self, *answers: Any, after: float = 0.0, name: str = "ada") -> None:
        self.answers = list(answers)
        self.after = after
        self.name = name
        self.shown: list[Question] = []
        self.dismissed: list[str] = []

    async def ask(self, question: Question) -> Answer:
        self.shown.append(question)
        try:
            await asyncio.sleep(self.after)
        except asyncio.CancelledError:
            self.dismissed.append(question.id)
            raise
        given = self.answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, Answer) else Answer(given)


def returning(value: Any) -> Any:
    async def ask(self: Any, question: Question) -> Any:
        return value

    return ask


async def entries_of(store: Any, type_: str, session: str = "s") -> list[bytes]:
    return [bytes(entry.body) for entry in await store.read(session) if entry.type == type_]


async def trail(store: Any, session: str = "s") -> list[bytes]:
    return [bytes(record.payload) for record in await store.audit(f"session:{session}") if record.kind == "Approval"]


async def error_code(awaitable: Awaitable[Any]) -> str:
    with pytest.raises(HoldfastError) as raised:
        await awaitable
    return code_of(raised.value)


async def halted(store: Any, ask: Callable[[Session], Awaitable[Any]], **options: Any) -> str:
    """Ask where nobody is; return the id of the question that is left."""
    with pytest.raises(HoldfastError) as raised:
        async with Session.open("s", store=store, **options) as session:
            await ask(session)
    assert code_of(raised.value) == "SESS_NO_INTERACTOR"
    return str(raised.value.fault.context["interaction_id"])


@pytest.mark.parametrize(
    ("ask", "given", "returned"),
    [
        (lambda s: s.ask("Name?"), "Ada", "Ada"),
        (lambda s: s.approve("Deploy?"), True, True),
        (lambda s: s.approve("Deploy?"), False, False),
        (lambda s: s.approve("Deploy?"), Answer.no("too late"), False),
        (lambda s: s.confirm("Sure?"), True, True),
        (lambda s: s.select("Where?", ["here", "there"]), "there", "there"),
        (lambda s: s.authenticate("Sign in", url="https://id.example/device", user_code="WDJB"), True, True),
        (lambda s: s.authenticate("Sign in"), Answer.no(), False),
        (lambda s: s.password("Password?"), SECRET, SECRET),
    ],
)
def test_N2_15_every_kind_of_question_is_answered_by_who_is_attached(ask: Any, given: Any, returned: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, interactors=[Person(given)]) as session:
            assert await ask(session) == returned
        assert len(await entries_of(store, "interaction_raised")) == 1
        assert len(await entries_of(store, "interaction_answered")) == 1
        assert len(await trail(store)) == 2

    run(main())


@pytest.mark.parametrize(
    "ask", [lambda s: s.ask("Name?"), lambda s: s.select("Where?", ["here"]), lambda s: s.password("Password?")]
)
def test_a_no_to_a_question_for_a_value_is_an_error(ask: Any) -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[Person(Answer.no("mind your business"))]) as s:
            with pytest.raises(HoldfastError, match="mind your business") as raised:
                await ask(s)
            assert code_of(raised.value) == "TOOL_APPROVAL_DENIED"

    run(main())


def test_N2_15_several_race_the_first_answer_counts_and_the_others_are_dismissed() -> None:
    async def main() -> None:
        store = MemoryStore()
        slow, quick = Person("slow", after=60, name="slow"), Person("quick", after=2, name="quick")
        async with Session.open("s", store=store, interactors=[slow, quick]) as session:
            assert await session.ask("Who?") == "quick"
            assert slow.dismissed == [slow.shown[0].id]
            # A later answer raises; the same answer again is fine.
            assert await error_code(session.answer(slow.shown[0].id, "slow")) == "SESS_ALREADY_ANSWERED"
            assert (await session.answer(slow.shown[0].id, "quick")).by == "quick"
        assert len(await entries_of(store, "interaction_answered")) == 1

    run(main())


def test_N2_15_one_prompt_at_a_time_in_the_order_of_asking() -> None:
    async def main() -> None:
        person = Person("1", "2", "3", after=5)
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            answers = [asyncio.create_task(session.ask(f"{n}?")) for n in (1, 2, 3)]
            await asyncio.sleep(1)
            assert [question.prompt for question in person.shown] == ["1?"]
            assert len(session.pending) == 3
            assert await asyncio.gather(*answers) == ["1", "2", "3"]
            assert [question.prompt for question in person.shown] == ["1?", "2?", "3?"]

    run(main())


def test_a_queued_question_may_be_answered_through_the_log_while_another_is_on_the_screen() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, interactors=[Person("one", after=50)]) as session:
            first, second = (asyncio.create_task(session.ask(f"{n}?")) for n in (1, 2))
            await asyncio.sleep(1)
            waiting = (await pending(store, "s"))[1]
            await answer(store, "s", waiting.id, "from afar", by="bob")
            assert await second == "from afar"
            assert not first.done()
            assert await first == "one"

    run(main())


def test_a_remote_answer_beats_who_is_attached_and_dismisses_the_prompt() -> None:
    async def main() -> None:
        store = MemoryStore()
        person = Person(True, after=100)
        async with Session.open("s", store=store, interactors=[person]) as session:
            answer_task = asyncio.create_task(session.approve("Deploy?"))
            await asyncio.sleep(1)
            await answer(store, "s", person.shown[0].id, approved=False, by="bob")
            assert await answer_task is False
            assert person.dismissed == [person.shown[0].id]

    run(main())


def test_two_who_answer_in_the_same_moment_one_wins_for_everybody() -> None:
    async def main() -> None:
        store = MemoryStore()
        id_ = await halted(store, lambda s: s.ask("Who?"))
        ends = await asyncio.gather(
            *(answer(store, "s", id_, name, by=name) for name in "abcdef"), return_exceptions=True
        )
        won = [end for end in ends if not isinstance(end, BaseException)]
        assert len(won) == 1
        assert {code_of(end) for end in ends if isinstance(end, BaseException)} == {"SESS_ALREADY_ANSWERED"}
        async with Session.open("s", store=store) as session:
            assert await session.ask("Who?") == won[0].value

    run(main())


def test_N2_15_headless_a_question_halts_stays_and_is_answered_later() -> None:
    async def main() -> None:
        store = MemoryStore()
        id_ = await halted(store, lambda s: s.approve("Deploy?"))
        assert await halted(store, lambda s: s.approve("Deploy?")) == id_
        assert [question.prompt for question in await pending(store, "s")] == ["Deploy?"]
        await answer(store, "s", id_, approved=True, by="bob")
        async with Session.open("s", store=store) as session:
            assert await session.approve("Deploy?") is True
            assert session.pending == ()
        assert len(await entries_of(store, "interaction_raised")) == 1

    run(main())


def test_headless_with_an_expiry_waits_for_an_answer_through_the_store() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            answer_task = asyncio.create_task(session.approve("Deploy?", expires=3600))
            await asyncio.sleep(1800)
            (question,) = await pending(store, "s")
            await answer(store, "s", question.id, approved=True, by="bob")
            assert await answer_task is True

    run(main())


@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (lambda s: s.approve("Deploy?"), "holdfast sessions answer s {id} --yes"),
        (lambda s: s.ask("Name?"), "holdfast sessions answer s {id} TEXT"),
        (lambda s: s.select("Where?", ["here", "there"]), "holdfast sessions answer s {id} CHOICE"),
    ],
)
def test_FU7_headless_the_error_names_the_command_that_answers(ask, command) -> None:
    async def main() -> None:
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=MemoryStore()) as session:
                await ask(session)
        id_ = raised.value.fault.context["interaction_id"]
        assert str(raised.value).endswith(f"; answer it with: {command.format(id=id_)}")

    run(main())


def test_headless_the_command_names_the_store_and_the_other_open_questions(tmp_path: Any) -> None:
    """The line is copied as it is, so it must find the store. Who answers one question learns of the others."""

    async def main() -> None:
        path = tmp_path / "work.db"
        async with SqliteStore(path) as store:
            first = await halted(store, lambda s: s.approve("Deploy?"))
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=store) as session:
                    await session.ask("Name?")
        second = raised.value.fault.context["interaction_id"]
        assert str(raised.value).endswith(
            f"answer it with: holdfast sessions answer s {second} TEXT --store sqlite:{path}. 1 more question is open: "
            f"holdfast sessions answer s {first} --yes --store sqlite:{path}"
        )
        assert raised.value.fault.context["open"] == [first, second]

    run(main())


def test_headless_with_many_open_questions_the_error_says_how_many_more_there_are() -> None:
    async def main() -> None:
        store = MemoryStore()
        for number in range(6):
            await halted(store, lambda s, number=number: s.ask(f"Name {number}?"))
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await session.ask("Name?")
        assert "6 more questions are open" in str(raised.value)
        assert str(raised.value).endswith("; all of them: holdfast sessions show s")
        assert str(raised.value).count("holdfast sessions answer") == 4

    run(main())


def test_FU7_a_password_cannot_be_answered_by_a_command() -> None:
    async def main() -> None:
        with pytest.raises(HoldfastError, match="only a client of this program can answer it") as raised:
            async with Session.open("s", store=MemoryStore()) as session:
                await session.password("Password?")
        assert "holdfast sessions answer" not in str(raised.value)

    run(main())


def test_headless_with_an_expiry_an_interactor_that_comes_later_gets_the_question() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            answer_task = asyncio.create_task(session.approve("Deploy?", expires=3600))
            await asyncio.sleep(10)
            session.attach(Person(True))
            assert await answer_task is True

    run(main())


def test_a_detached_interactor_gets_no_question() -> None:
    async def main() -> None:
        person = Person(True, after=100)
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            answer_task = asyncio.create_task(session.approve("Deploy?"))
            await asyncio.sleep(1)
            session.detach(person)
            assert await error_code(answer_task) == "SESS_NO_INTERACTOR"
            assert person.dismissed

    run(main())


def test_a_question_expires_and_a_late_answer_is_rejected() -> None:
    async def main() -> None:
        store = MemoryStore()
        person = Person(True, after=100)
        async with Session.open("s", store=store, interactors=[person]) as session:
            with pytest.raises(HoldfastError, match="within 60 s") as raised:
                await session.approve("Deploy?", expires=60)
            assert code_of(raised.value) == "SESS_INTERACTION_EXPIRED"
            late = person.shown[0].id
            assert person.dismissed == [late]
            assert await error_code(session.answer(late, approved=True)) == "SESS_INTERACTION_EXPIRED"
            assert b'"timeout"' in (await trail(store))[-1]

    run(main())


def test_the_expiry_is_by_the_wall_clock_over_restarts() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def dies_waiting(session: Session) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.approve("Deploy?", expires=100), 1)
            raise Crash

        await killed(store, dies_waiting)
        (question,) = await pending(store, "s")
        await asyncio.sleep(200)
        assert await error_code(answer(store, "s", question.id, approved=True)) == "SESS_INTERACTION_EXPIRED"
        async with Session.open("s", store=store) as session:
            assert await error_code(session.approve("Deploy?", expires=100)) == "SESS_INTERACTION_EXPIRED"

    run(main())


def test_a_question_that_expired_is_raised_again_when_its_turn_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(HoldfastError):
            async with Session.open("s", store=store) as session:
                await session.approve("Deploy?", expires=10)
        async with Session.open("s", store=store, interactors=[Person(True)]) as session:
            assert await session.approve("Deploy?", expires=10) is True
        assert len(await entries_of(store, "interaction_raised")) == 2

    run(main())


@pytest.mark.parametrize("expires", [0, -1, float("nan"), True, "60"])
def test_N2_15_an_expiry_must_be_more_than_nothing(expires: Any) -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[Person(True)]) as session:
            with pytest.raises(InvalidError, match="expires"):
                await session.approve("Deploy?", expires=expires)

    run(main())


def test_an_answered_question_is_not_repeated_after_a_crash() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def dies_after_the_answer(session: Session) -> None:
            assert await session.approve("Deploy?") is True
            assert await session.ask("Where?") == "here"
            raise Crash

        await killed(store, dies_after_the_answer, interactors=[Person(True, "here")])
        nobody = Person()
        async with Session.open("s", store=store, interactors=[nobody]) as session:
            assert await session.approve("Deploy?") is True
            assert await session.ask("Where?") == "here"
            assert nobody.shown == []

    run(main())


def test_another_question_in_the_place_of_the_one_that_was_answered_is_another_question() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def dies(session: Session) -> None:
            await session.approve("Deploy to staging?")
            raise Crash

        await killed(store, dies, interactors=[Person(True)])
        person = Person(False)
        async with Session.open("s", store=store, interactors=[person]) as session:
            assert await session.approve("Deploy to production?") is False
            assert await session.approve("Deploy to staging?") is True
        assert [question.prompt for question in person.shown] == ["Deploy to production?"]

    run(main())


def test_N2_15_a_dismissed_question_cancels_its_turn_and_the_next_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()
        person = Person(Answer.dismissed("not now"), True)
        async with Session.open("s", store=store, interactors=[person]) as session:
            with pytest.raises(AbortedError) as raised:
                async with session.turn():
                    await session.approve("Deploy?")
            assert code_of(raised.value) == "SESS_TURN_CANCELLED"
            async with session.turn():
                assert await session.approve("Deploy?") is True
        ended = await entries_of(store, "turn_ended")
        assert b"cancelled" in ended[0]
        assert b'"ok"' in ended[1]

    run(main())


def test_a_dismissed_question_outside_of_a_turn_is_asked_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, interactors=[Person(Answer.dismissed(), True)]) as session:
            assert await error_code(session.approve("Deploy?")) == "SESS_TURN_CANCELLED"
            assert await session.approve("Deploy?") is True

    run(main())


@pytest.mark.parametrize(
    ("ask", "returned"),
    [
        (lambda s: s.ask("Name?"), ""),
        (lambda s: s.approve("Deploy?"), True),
        (lambda s: s.confirm("Sure?"), True),
        (lambda s: s.select("Where?", ["here", "there"]), "here"),
        (lambda s: s.authenticate("Sign in"), False),
        (lambda s: s.password("Password?"), None),
    ],
)
def test_N2_15_yolo_answers_by_itself_where_nobody_is_and_it_is_audited(ask: Any, returned: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, mode="yolo") as session:
            assert await ask(session) == returned
        assert b'"by":"yolo"' in (await trail(store))[-1]

    run(main())


def test_yolo_leaves_the_answer_to_who_is_there() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), mode="yolo", interactors=[Person(False)]) as session:
            assert await session.approve("Deploy?") is False

    run(main())


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        (lambda s: s.ask("Name?"), 7),
        (lambda s: s.approve("Deploy?"), "yes"),
        (lambda s: s.select("Where?", ["here", "there"]), "nowhere"),
        (lambda s: s.select("Where?", ["here", "there"]), ["here"]),
        (lambda s: s.password("Password?"), "given from afar"),
    ],
)
def test_N2_15_an_answer_that_does_not_fit_is_rejected_and_the_question_stays(ask: Any, wrong: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        id_ = await halted(store, ask)
        assert await error_code(answer(store, "s", id_, wrong)) == "SESS_INTERACTION_MISMATCH"
        assert len(await pending(store, "s")) == 1

    run(main())


def test_an_answer_to_another_kind_is_rejected() -> None:
    async def main() -> None:
        store = MemoryStore()
        id_ = await halted(store, lambda s: s.approve("Deploy?"))
        assert await error_code(answer(store, "s", id_, True, kind="Confirm")) == "SESS_INTERACTION_MISMATCH"
        assert (await answer(store, "s", id_, True, kind="Approve")).outcome == "accepted"

    run(main())


def test_nothing_to_select_from_is_rejected() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
            assert await error_code(session.select("Where?", [])) == "SESS_INTERACTION_MISMATCH"

    run(main())


def test_a_question_of_a_kind_that_a_newer_program_knows_is_not_guessed_at() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(int, "3")
            raised = QuestionRaised(id="q-1", step="?Sketch#1", turn=2, kind="Sketch")
            bodies = (TurnStarted(turn=2), raised)
            entries = tuple(new_entry(one, f"e{n}") for n, one in enumerate(bodies))
            await store.commit(Commit(session="s", entries=entries))
            assert await error_code(answer(store, "s", "q-1", "…")) == "SESS_INTERACTION_UNKNOWN_KIND"

    run(main())


def test_answers_to_questions_that_never_were_or_are_over() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, interactors=[Person("first")]) as session:
            assert await error_code(session.answer("q-none", True)) == "SESS_NOT_FOUND"
            async with session.turn():
                await session.ask("Who?")
            (question,) = (msg for msg in await entries_of(store, "interaction_raised"))
            id_ = question.split(b'"id":"')[1].split(b'"')[0].decode()
            assert await error_code(session.answer(id_, "second")) == "SESS_ALREADY_ANSWERED"

        async def in_a_turn(session: Session) -> None:
            async with session.turn("t"):
                await session.ask("Again?")

        id_ = await halted(store, in_a_turn)
        async with Session.open("s", store=store) as session:
            await session.abandon()
        assert await error_code(answer(store, "s", id_, "late")) == "SESS_INTERACTION_EXPIRED"
        assert await error_code(answer(store, "nowhere", id_, "late")) == "SESS_NOT_FOUND"

    run(main())


def test_who_fails_to_ask_leaves_it_to_the_others() -> None:
    async def main() -> None:
        broken = Person(RuntimeError("the window is gone"))
        async with Session.open("s", store=MemoryStore(), interactors=[broken, Person("Ada", after=5)]) as session:
            assert await session.ask("Name?") == "Ada"

    run(main())


def test_an_interactor_that_fails_is_reported_with_its_name_and_the_question(caplog: Any) -> None:
    """Otherwise nobody would know that one of the windows has shown nothing."""

    async def main() -> None:
        runtime, broken = Runtime(), Person(KeyError("tool"), name="slack")
        heard = Capture()
        runtime.on(heard)
        people = [broken, Person("Ada", after=5)]
        async with Session.open("s", store=MemoryStore(), interactors=people, runtime=runtime) as session:
            assert await session.ask("Name?") == "Ada"
        (event,) = [event for event in heard.events if isinstance(event, SuppressedError)]
        assert f"interactor slack failed with KeyError at question {broken.shown[0].id} of session s" in event.reason
        assert f"interactor slack failed with KeyError at question {broken.shown[0].id} of session s" in caplog.text

    run(main())


def test_of_several_interactors_that_fail_the_last_error_is_raised_and_the_others_are_reported() -> None:
    async def main() -> None:
        runtime, heard = Runtime(), Capture()
        runtime.on(heard)
        people = [Person(KeyError("tool"), name="slack"), Person(RuntimeError("gone"), name="web")]
        with pytest.raises(RuntimeError, match="gone") as raised:
            async with Session.open("s", store=MemoryStore(), interactors=people, runtime=runtime) as session:
                await session.ask("Name?")
        (note,) = raised.value.__notes__
        assert "interactor web" in note
        (event,) = [event for event in heard.events if isinstance(event, SuppressedError)]
        assert "interactor slack" in event.reason

    run(main())


@pytest.mark.parametrize(
    ("ask", "got"),
    [
        (lambda self, question: Answer(value=True), "an Answer from a function that is not async"),
        (lambda self, question: True, "a bool from a function that is not async"),
        (returning(True), "a bool"),
        (returning(SECRET), "a str"),
        (returning(None), "None"),
    ],
)
def test_an_interactor_that_returns_no_answer_learns_what_to_return(ask: Any, got: str) -> None:
    clerk = type("Clerk", (), {"ask": ask})()

    async def main() -> None:
        with pytest.raises(InvalidError) as raised:
            async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
                await session.approve("Deploy?")
        assert str(raised.value).endswith(f"Clerk.ask: expected an Answer, from an async function, got {got}")

    run(main())


def test_the_repr_of_a_question_shows_what_it_is_about() -> None:
    question = Question(
        id="q-1", session="s", turn=1, kind="Select", prompt="Where?", choices=("a", "b"), details={"tool": "pay"}
    )
    assert repr(question) == (
        "Question(id='q-1', kind='Select', prompt='Where?', choices=('a', 'b'), details={'tool': 'pay'})"
    )
    plain = Question(id="q-1", session="s", turn=1, kind="Approve", prompt="Deploy?", user_code="WDJB")
    assert repr(plain) == "Question(id='q-1', kind='Approve', prompt='Deploy?')"


def test_where_everybody_fails_the_failure_shows_and_the_question_stays() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(RuntimeError, match="the window is gone"):
            async with Session.open("s", store=store, interactors=[Person(RuntimeError("the window is gone"))]) as s:
                await s.ask("Name?")
        assert len(await pending(store, "s")) == 1

    run(main())


class Phone:
    """The task of its connection is cancelled while it asks."""

    name = "phone"

    def __init__(self, cancels: str) -> None:
        self.cancels = cancels
        self.asked = 0

    async def ask(self, question: Question) -> Answer:
        self.asked += 1
        wire = asyncio.ensure_future(asyncio.Event().wait())
        own = asyncio.current_task()
        asyncio.get_running_loop().call_later(0.05, (own if self.cancels == "its own task" else wire).cancel)
        await wire
        raise AssertionError


@pytest.mark.parametrize("cancels", ["its own task", "its connection"])
def test_an_interactor_that_is_cancelled_by_itself_is_one_that_failed(cancels: str) -> None:
    async def main() -> None:
        store, phone = MemoryStore(), Phone(cancels)
        async with (
            asyncio.timeout(60),
            Session.open("s", store=store, interactors=[phone, Person("Ada", after=5)]) as s,
        ):
            assert await s.ask("Name?") == "Ada"
        with pytest.raises(ConnectionAbortedError):
            async with asyncio.timeout(60), Session.open("t", store=store, interactors=[phone]) as s:
                await s.ask("Name?")
        assert len(await pending(store, "t")) == 1
        assert phone.asked == 2

    run(main())


def test_what_a_person_answers_in_the_wrong_shape_is_no_answer() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[Person("maybe")]) as session:
            assert await error_code(session.approve("Deploy?")) == "SESS_INTERACTION_MISMATCH"

    run(main())


def test_who_hangs_on_a_dismissed_prompt_does_not_hold_up_the_session() -> None:
    class Stubborn:
        async def ask(self, question: Question) -> Answer:
            while True:
                try:
                    await asyncio.sleep(3600)
                    return Answer(f"too late for {question.id}")
                except asyncio.CancelledError:
                    continue

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = asyncio.all_tasks()
        async with Session.open("s", store=MemoryStore(), interactors=[Stubborn(), Person("quick")]) as session:
            began = loop.time()
            assert await session.ask("Who?") == "quick"
            assert loop.time() - began < 3
        await asyncio.sleep(4000)
        assert asyncio.all_tasks() == before

    run(main())


def test_a_cancelled_turn_takes_its_prompt_away() -> None:
    async def main() -> None:
        person = Person(True, after=100)
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            with pytest.raises(AbortedError):
                async with session.turn() as turn:
                    asyncio.get_running_loop().call_later(5, turn.cancel)
                    await session.approve("Deploy?")
            assert person.dismissed

    run(main())


def test_passwords_and_device_codes_are_in_no_file(tmp_path: Any) -> None:
    async def main() -> None:
        person = Person(SECRET, True)
        async with (
            SqliteStore(tmp_path / "s.db") as store,
            Session.open("s", store=store, interactors=[person]) as session,
        ):
            assert await session.password("Password?") == SECRET
            assert await session.authenticate("Sign in", url="https://id.example/device", user_code="WDJB-MJHT")
            assert person.shown[1].user_code == "WDJB-MJHT"
            assert SECRET not in repr(Answer(SECRET))
            assert "WDJB" not in repr(person.shown[1])
            found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
            assert b"https://id.example/device" in found
            assert SECRET.encode() not in found
            assert b"WDJB" not in found
        found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert SECRET.encode() not in found

    asyncio.run(main())


def test_a_password_is_needed_again_after_a_crash_because_it_was_not_stored() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def dies(session: Session) -> None:
            await session.password("Password?")
            raise Crash

        await killed(store, dies, interactors=[Person(SECRET)])
        async with Session.open("s", store=store, interactors=[Person("another")]) as session:
            assert await session.password("Password?") == "another"

    run(main())


def test_two_processes_on_one_file_see_each_others_answers(tmp_path: Any) -> None:
    async def main() -> None:
        async with (
            SqliteStore(tmp_path / "s.db") as here,
            SqliteStore(tmp_path / "s.db") as elsewhere,
            Session.open("s", store=here) as session,
        ):
            answer_task = asyncio.create_task(session.approve("Deploy?", expires=60))
            while not session.pending:  # noqa: ASYNC110 - the store writes in a thread
                await asyncio.sleep(0.01)
            (question,) = await pending(elsewhere, "s")
            await answer(elsewhere, "s", question.id, approved=True, by="bob")
            # What the other process wrote wakes nobody here; something of ours does, or the next look.
            await session.message("meanwhile")
            assert await asyncio.wait_for(answer_task, 5) is True

    asyncio.run(main())


# S2-19: each way out of an error


def failing(*faults: Any) -> tuple[Callable[[str], str], list[str]]:
    """A step that fails so and then works, and what it was called with."""
    left = list(faults)
    given: list[str] = []

    def fetch(place: str) -> str:
        given.append(place)
        if left:
            raise HoldfastError(Fault.of(left.pop(0)))
        return place.upper()

    return fetch, given


def test_S2_19_retry_the_call() -> None:
    async def main() -> None:
        store = MemoryStore()
        person = Person(True)
        fetch, given = failing("PROVIDER_UNAVAILABLE")
        async with Session.open("s", store=store, interactors=[person]) as session:
            assert await session.step_or_ask(fetch, "here") == "HERE"
        assert given == ["here", "here"]
        assert person.shown[0].kind == "Approve"
        assert "Retry the call?" in person.shown[0].prompt
        assert [b'"raised"' in record for record in await trail(store)] == [True, False]

    run(main())


def test_S2_19_replacement_input() -> None:
    async def main() -> None:
        person = Person("there")
        fetch, given = failing("TOOL_INPUT_INVALID")
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            assert await session.step_or_ask(fetch, "here") == "THERE"
        assert given == ["here", "there"]
        assert person.shown[0].kind == "Ask"
        assert "Replacement input?" in person.shown[0].prompt
        assert '["here"]' in person.shown[0].prompt

    run(main())


def test_S2_19_authenticate_again() -> None:
    async def sign_in(fault: Fault) -> DeviceCode:
        assert fault.code == "AUTH_FAILED"
        return DeviceCode("https://id.example/device", "WDJB-MJHT")

    async def main() -> None:
        person = Person(True)
        fetch, given = failing("AUTH_FAILED")
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            session.sign_in = sign_in
            assert await session.step_or_ask(fetch, "here") == "HERE"
        assert given == ["here", "here"]
        assert person.shown[0].kind == "Auth.DeviceCode"
        assert person.shown[0].url == "https://id.example/device"
        assert person.shown[0].user_code == "WDJB-MJHT"
        assert "WDJB" not in repr(DeviceCode("https://id.example/device", "WDJB-MJHT"))

    run(main())


def test_S2_19_declined_the_failure_stands() -> None:
    async def main() -> None:
        for code in ("PROVIDER_UNAVAILABLE", "TOOL_INPUT_INVALID", "AUTH_FAILED"):
            fetch, given = failing(code)
            async with Session.open("s", store=MemoryStore(), interactors=[Person(Answer.no())]) as session:
                assert await error_code(session.step_or_ask(fetch, "here")) == code
            assert given == ["here"]

    run(main())


def test_S2_19_a_recorded_way_out_is_taken_again_after_a_crash() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, given = failing("TOOL_INPUT_INVALID", "PROVIDER_UNAVAILABLE")

        async def dies(session: Session) -> None:
            assert await session.step_or_ask(fetch, "here") == "THERE"
            raise Crash

        await killed(store, dies, interactors=[Person("there", True)])
        assert given == ["here", "there", "there"]
        async with Session.open("s", store=store) as session:
            assert await session.step_or_ask(fetch, "here") == "THERE"
            assert await session.step_or_ask(fetch, "next") == "NEXT"
        assert given == ["here", "there", "there", "next"]

    run(main())


def test_S2_19_headless_the_question_is_kept_and_answered_for_the_next_run() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, given = failing("TOOL_INPUT_INVALID")
        id_ = await halted(store, lambda s: s.step_or_ask(fetch, "here"))
        await answer(store, "s", id_, "there")
        async with Session.open("s", store=store) as session:
            assert await session.step_or_ask(fetch, "here") == "THERE"
        assert given == ["here", "there"]

    run(main())


def test_S2_19_a_no_holds_for_one_run_only() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, given = failing("PROVIDER_UNAVAILABLE", "PROVIDER_UNAVAILABLE")
        with pytest.raises(HoldfastError):
            async with Session.open("s", store=store, interactors=[Person(False)]) as session:
                await session.step_or_ask(fetch, "here")
        async with Session.open("s", store=store, interactors=[Person(True)]) as session:
            assert await session.step_or_ask(fetch, "here") == "HERE"
        assert given == ["here"] * 3

    run(main())


def test_S2_19_yolo_does_not_go_on_for_ever() -> None:
    async def main() -> None:
        fetch, given = failing(*["PROVIDER_UNAVAILABLE"] * 50)
        async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
            assert await error_code(session.step_or_ask(fetch, "here")) == "PROVIDER_UNAVAILABLE"
        assert len(given) == 4

    run(main())


def test_S2_19_what_may_have_happened_is_not_offered_for_a_repeat() -> None:
    calls: list[int] = []

    @tool(effect="unsafe")
    def deploy(n: int) -> int:
        calls.append(n)
        raise HoldfastError(Fault.of("PROVIDER_TIMEOUT", maybe_executed=True))

    async def main() -> None:
        person = Person("I do not know", "I do not know")
        async with Session.open("s", store=MemoryStore(), interactors=[person], mode="yolo") as session:
            with pytest.raises(HoldfastError):
                await session.step_or_ask(deploy, 1)
            with pytest.raises(OutcomeUnknownError):
                await session.step_or_ask(deploy, 1)
        assert calls == [1]
        assert [question.kind for question in person.shown] == ["Select", "Select"]

    run(main())


def test_S2_19_a_mistake_of_the_program_is_nobodys_question() -> None:
    def wrong(n: int) -> int:
        return n + {}["missing"]

    async def main() -> None:
        person = Person()
        async with Session.open("s", store=MemoryStore(), interactors=[person]) as session:
            with pytest.raises(KeyError):
                await session.step_or_ask(wrong, 1)
        assert person.shown == []

    run(main())


def test_S2_19_several_arguments_are_replaced_as_json() -> None:
    left = [Fault.of("TOOL_INPUT_INVALID")]

    def add(a: int, b: int, *, times: int = 1) -> int:
        if left:
            raise HoldfastError(left.pop())
        return (a + b) * times

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[Person("[2, 3]", "[2", "[2]")]) as session:
            assert await session.step_or_ask(add, 1, 1, times=2) == 10
            left.append(Fault.of("TOOL_INPUT_INVALID"))
            assert await error_code(session.step_or_ask(add, 1, 1)) == "SESS_INTERACTION_MISMATCH"
            left.append(Fault.of("TOOL_INPUT_INVALID"))
            assert await error_code(session.step_or_ask(add, 1, 1)) == "SESS_INTERACTION_MISMATCH"

    run(main())


def test_FC7_signing_in_is_not_offered_for_a_file_that_may_not_be_touched():
    assert remedy_for(Fault.of("AUTH_FAILED")) == "authenticate"
    assert remedy_for(Fault.of("TOOL_FORBIDDEN")) is None
    assert remedy_for(Fault.of("TOOL_FILE_NOT_FOUND")) == "replace"


@pytest.mark.parametrize("mode", ["Ask", "", None, 5])
def test_FR21_a_mode_that_would_do_nothing_is_rejected(mode: Any) -> None:
    with pytest.raises(InvalidError, match=r"session\.mode: expected .*ask"):
        Session.open("s", store=MemoryStore(), mode=mode)


def test_XB6_many_questions_at_once_read_the_log_together():
    """Each question read the log at each news of it: 900 questions kept the server of all sessions busy for minutes."""

    class Counting(MemoryStore):
        reads = 0

        async def read(self, *args, **options):
            self.reads += 1
            return await super().read(*args, **options)

    class Ann:
        async def ask(self, question):
            await asyncio.sleep(0)
            return Answer(question.prompt)

    async def main():
        async with Counting() as store, Session.open("many", store=store, interactors=[Ann()]) as session:
            said = await asyncio.gather(*(session.ask(f"question {n}?") for n in range(100)))
            assert said == [f"question {n}?" for n in range(100)]
            return store.reads

    assert asyncio.run(main()) < 2_000
