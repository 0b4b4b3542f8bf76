"""Which model answers: capabilities before the first request, chains of models, memory, and models of other packages."""

from __future__ import annotations

import asyncio
import sys
import textwrap

import anthropic
import msgspec
import pytest
from providers_kit import KINDS, MODELS, TOOL, World, question

from holdfast import HoldfastError, InvalidError, fault_of
from holdfast.events import AttemptStarted, CircuitStateChange, Fallback, Recovered, SuppressedError
from holdfast.extensions import Extensions
from holdfast.policies.models.capabilities import Needs, Offers
from holdfast.providers import CachedModel, ModelChain, choose
from holdfast.providers.offers import offers_of
from holdfast.testing.provider.script import read_file

each = pytest.mark.parametrize("kind", KINDS)
PLAIN = Offers(streaming=False, tool_calling=False, structured_output=False, reasoning=False, context_window=1000)

REFUSALS = (
    (question(tools=(TOOL,)), False, "PROVIDER_MISSING_TOOL_CALLING", "toolCalling"),
    (question(), True, "PROVIDER_MISSING_STREAMING", "streaming"),
    (question(schema={"type": "object"}), False, "PROVIDER_CAPABILITY_MISSING", "structuredOutput"),
    (question(needs=Needs(window=2000)), False, "PROVIDER_CONTEXT_OVERFLOW", "contextWindow"),
    (question(needs=Needs(levels={"reasoning": "hard"})), False, "PROVIDER_CAPABILITY_MISSING", "reasoning"),
)


# Before the first request


@each
@pytest.mark.parametrize(("request_", "streamed", "code", "missing"), REFUSALS, ids=[one[3] for one in REFUSALS])
def test_S2_2_what_a_model_cannot_do_fails_fast_with_nothing_on_the_wire(kind, request_, streamed, code, missing):
    world = World()
    model = world.model(kind, offers=PLAIN)
    with pytest.raises(HoldfastError) as raised:
        model.stream(request_) if streamed else world.exchange(model, request_)
    fault = raised.value.fault
    assert (fault.code, fault.context["missing"], fault.retryable) == (code, [missing], False)
    assert fault.message.startswith(f"{kind}/{MODELS[kind]} lacks {missing}")
    assert world.received == 0
    assert world.heard.events == [], "no attempt was made, so none is reported or counted"


def test_N2_18_what_is_preferred_and_missing_is_told_and_the_request_is_sent():
    world = World()
    request = question(needs=Needs(levels={"reasoning": "preferred"}))
    assert world.exchange(world.model("xai", offers=PLAIN), request).text == "You said: hello"
    (event,) = world.of(SuppressedError)
    assert (event.code, event.cause) == ("PROVIDER_CAPABILITY_MISSING", "xai/grok-4 lacks reasoning")
    assert event.reason == "the model lacks a preferred capability"


def test_N2_18_what_is_probed_and_missing_is_done_without_in_silence():
    world = World()
    world.exchange(world.model("xai", offers=PLAIN), question(needs=Needs(levels={"reasoning": "probed"})))
    assert world.of(SuppressedError) == []
    assert world.received == 1


@pytest.mark.parametrize(("level", "sent"), [("probed", True), ("preferred", True), ("absent", False)])
def test_a_wish_for_prompt_caching_reaches_anthropic(level, sent):
    world = World()
    world.exchange(world.model("anthropic"), question(needs=Needs(levels={"promptCaching": level})))
    assert ("cache_control" in world.sent[0]) is sent


def test_S2_1_a_choice_is_refused_by_name_with_those_that_would_do():
    world = World()
    plain = world.model("xai", offers=PLAIN)
    models = [plain, world.model("anthropic"), world.model("openai")]
    needs = Needs(levels={"toolCalling": "hard"}, window=300_000)
    with pytest.raises(HoldfastError) as raised:
        choose("xai/grok-4", models, needs)
    assert raised.value.fault.message == (
        "xai/grok-4 lacks toolCalling, contextWindow (needs 300000 tokens, has 1000); use openai/gpt-5-mini instead"
    )
    assert choose("openai/gpt-5-mini", models, needs) is models[2]
    with pytest.raises(InvalidError, match=r"a configured model \(openai/gpt-5-mini\), got 'openai/gpt5-mini'"):
        choose("openai/gpt5-mini", models, needs)
    assert world.received == 0


@pytest.mark.parametrize(
    ("model", "window", "tools"),
    [
        ("claude-haiku-4-5-20251001", 200_000, True),
        ("claude-next-9", None, True),
        ("gpt-5-mini", 400_000, True),
        ("gpt-5.9", None, True),
        ("llama-of-my-own", None, None),
    ],
)
def test_what_is_known_of_a_model_is_by_the_longest_listed_beginning(model, window, tools):
    assert (offers_of(model).context_window, offers_of(model).tool_calling) == (window, tools)


# Several models


def test_S1_15_the_next_model_answers_where_the_first_is_down():
    down, up = World("529, loop"), World()
    chain = ModelChain([down.model("anthropic"), up.model("openai")], runtime=down.runtime)
    assert down.exchange(chain, question()).text == "You said: hello"
    assert (down.received, up.received) == (3, 1)
    (event,) = down.of(Fallback)
    assert (event.to, event.fault.code) == ("openai/gpt-5-mini", "PROVIDER_OVERLOADED")


def test_a_model_whose_circuit_is_open_is_skipped_and_the_next_answers_at_once():
    down, up = World("529, loop"), World()
    first = down.model("anthropic")
    for _ in range(2):
        with pytest.raises(anthropic.APIStatusError):
            down.exchange(first, question())
    before = down.received
    chain = ModelChain([first, up.model("openai")], runtime=down.runtime)
    for _ in range(6):
        assert down.exchange(chain, question()).text == "You said: hello"
    assert (down.received, up.received) == (before, 6)


STREAMED = pytest.mark.parametrize("streamed", [False, True])


class Pair:
    """A chain whose first model fails by a script, and whose second one always answers."""

    def __init__(self, script, **options):
        self.down, self.up = World(script), World()
        models = [self.down.model("anthropic"), self.up.model("openai")]
        self.chain = ModelChain(models, runtime=self.down.runtime, **options)

    def ask(self, streamed=False):
        """Ask, and return the model that answered."""
        if streamed:
            return self.down.stream(self.chain, question())[-1].model
        return self.down.exchange(self.chain, question()).model

    def wait(self, seconds):
        self.down.run(asyncio.sleep(seconds))


@STREAMED
def test_XA10_the_model_that_answered_in_place_of_another_stays(streamed):
    pair = Pair("529, loop")
    assert [pair.ask(streamed) for _ in range(9)] == ["gpt-5-mini"] * 9
    assert (pair.down.received, pair.up.received) == (3, 9)
    (change,) = [event for event in pair.down.of(CircuitStateChange) if event.rule == "fallback"]
    assert (change.circuit, change.to.value) == ("model:anthropic/claude-haiku-4-5", "open")


@STREAMED
def test_XA10_the_first_model_answers_again_once_it_is_back(streamed):
    pair = Pair("529*3, ok")
    assert pair.ask(streamed) == "gpt-5-mini"
    pair.wait(29)
    assert pair.ask(streamed) == "gpt-5-mini"
    pair.wait(2)
    assert [pair.ask(streamed) for _ in range(3)] == ["claude-haiku-4-5"] * 3
    assert [event.to.value for event in pair.down.of(CircuitStateChange) if event.rule == "fallback"] == [
        "open",
        "closed",
    ]


def test_XA10_it_is_asked_less_and_less_often_as_long_as_it_fails():
    pair = Pair("529, loop")
    asked = []
    for _ in range(600):
        before = pair.down.received
        pair.ask()
        if pair.down.received > before:
            asked.append(pair.down.runtime.clock.monotonic())
        pair.wait(5)
    assert len(asked) <= 9


def test_XA10_it_is_asked_again_when_its_failure_said():
    pair = Pair("429;retry-after=1000, ok")  # longer than a call waits
    assert pair.ask() == "gpt-5-mini"
    pair.wait(995)
    assert pair.ask() == "gpt-5-mini"
    pair.wait(6)
    assert pair.ask() == "claude-haiku-4-5"


@STREAMED
def test_XA10_a_failure_of_the_request_itself_says_nothing_about_the_next_request(streamed):
    pair = Pair("overflow, ok")
    assert [pair.ask(streamed) for _ in range(2)] == ["gpt-5-mini", "claude-haiku-4-5"]


def test_XA10_if_the_one_that_stays_fails_the_first_one_is_asked_too():
    down, up = World("529*3, ok"), World("ok, 529*9")
    chain = ModelChain([down.model("anthropic"), up.model("openai")], runtime=down.runtime)
    models = [down.exchange(chain, question()).model for _ in range(2)]
    assert models == ["gpt-5-mini", "claude-haiku-4-5"]
    # Now that one stays.
    assert down.exchange(chain, question()).model == "claude-haiku-4-5"


def test_XA10_a_request_that_nobody_answered_changes_nothing():
    down, up = World("529*3, ok"), World("529*3, ok")
    chain = ModelChain([down.model("anthropic"), up.model("openai")], runtime=down.runtime)
    with pytest.raises(anthropic.APIStatusError):
        down.exchange(chain, question())
    assert down.exchange(chain, question()).model == "claude-haiku-4-5"


def test_a_model_without_the_capability_is_skipped_with_an_event():
    world = World()
    bare, able_ = world.model("anthropic", offers=PLAIN), world.model("openai")
    chain = ModelChain([bare, able_], runtime=world.runtime)
    reply = world.exchange(chain, question(tools=(TOOL,)))
    assert reply.model == "gpt-5-mini"
    assert world.received == 1
    (event,) = world.of(SuppressedError)
    assert (event.reason, event.cause) == ("the model was skipped", "anthropic/claude-haiku-4-5 lacks toolCalling")
    assert event.code == "PROVIDER_MISSING_TOOL_CALLING"


def test_where_nobody_can_it_fails_fast_with_nothing_on_the_wire():
    world = World()
    chain = ModelChain([world.model(kind, offers=PLAIN) for kind in KINDS], runtime=world.runtime)
    for ask in (lambda: world.exchange(chain, question(tools=(TOOL,))), lambda: chain.stream(question(tools=(TOOL,)))):
        with pytest.raises(HoldfastError) as raised:
            ask()
        assert "toolCalling" in raised.value.fault.context["missing"]
    assert world.received == 0


def test_S1_24_when_all_are_down_the_first_error_surfaces_with_what_became_of_each():
    world = World("529, loop")
    chain = ModelChain([world.model(kind) for kind in KINDS], runtime=world.runtime)
    with pytest.raises(Exception, match="Overloaded") as raised:
        world.exchange(chain, question())
    fault = fault_of(raised.value)
    assert fault.code == "PROVIDER_OVERLOADED"
    assert [one["step"] for one in fault.context["fallbacks"]] == ["openai/gpt-5-mini", "xai/grok-4"]
    assert world.received == 9


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_events_call_a_chain_by_its_name(streamed):
    world = World("529*3, ok")
    chain = ModelChain([world.model("anthropic"), world.model("openai")], runtime=world.runtime)
    (world.stream if streamed else world.exchange)(chain, question())
    assert [event.operation for event in world.of(Fallback)] == [chain.name]
    assert {event.operation for event in world.of(AttemptStarted)} == {
        chain.name, "anthropic/claude-haiku-4-5", "openai/gpt-5-mini"
    }  # fmt: skip
    assert [event.operation for event in world.of(Recovered)][-1] == chain.name


@pytest.mark.parametrize("agrees", [True, False])
def test_C28_another_provider_answers_only_with_consent_where_that_is_asked(agrees):
    questions = []

    def consent(operation, step, fault):
        questions.append(step)
        return agrees

    down, up = World("529, loop", consent=consent), World()
    chain = ModelChain([down.model("anthropic"), up.model("openai")], consent="ask", runtime=down.runtime)
    if agrees:
        assert down.exchange(chain, question()).text == "You said: hello"
    else:
        with pytest.raises(Exception, match="Overloaded"):
            down.exchange(chain, question())
    assert questions == ["openai/gpt-5-mini"]
    assert up.received == (1 if agrees else 0)


@pytest.mark.parametrize("agrees", [True, False])
def test_C28_consent_is_asked_too_where_the_first_model_lacks_a_capability(agrees):
    questions = []

    def consent(operation, step, fault):
        questions.append((step, fault.code))
        return agrees

    world = World(consent=consent)
    unable = world.model("anthropic", offers=Offers(tool_calling=False))
    chain = ModelChain([unable, world.model("openai")], consent="ask", runtime=world.runtime)
    if agrees:
        assert world.exchange(chain, question(tools=(TOOL,))).text == "You said: hello"
    else:
        with pytest.raises(HoldfastError, match="lacks toolCalling"):
            world.exchange(chain, question(tools=(TOOL,)))
    assert questions == [("openai/gpt-5-mini", "PROVIDER_MISSING_TOOL_CALLING")]
    assert world.received == (1 if agrees else 0)


def test_C28_a_stream_that_needs_consent_fails_fast_where_the_first_model_cannot():
    world = World(consent=lambda *_: True)
    unable = world.model("anthropic", offers=Offers(tool_calling=False))
    chain = ModelChain([unable, world.model("openai")], consent="ask", runtime=world.runtime)
    with pytest.raises(HoldfastError, match="lacks toolCalling"):
        world.stream(chain, question(tools=(TOOL,)))
    assert world.received == 0


def test_a_stream_is_taken_over_before_its_first_word_and_never_after():
    down, up = World("529*3, cut;after=2"), World()
    chain = ModelChain([down.model("anthropic"), up.model("openai")], runtime=down.runtime)
    *words, reply = down.stream(chain, question("one"))
    assert ("".join(words), reply.model) == ("You said: one", "gpt-5-mini")
    down.run(asyncio.sleep(31))
    with pytest.raises(HoldfastError) as raised:
        down.stream(chain, question("one"))
    assert raised.value.fault.partial.payload == "You said:"
    assert up.received == 1


def test_a_chain_of_nobody_is_invalid():
    with pytest.raises(InvalidError, match="at least one model"):
        ModelChain([])


# Memory


@each
def test_the_same_request_is_answered_from_memory_until_its_time_is_over(kind):
    world = World()
    model = CachedModel(world.model(kind), ttl=60, runtime=world.runtime)

    async def ask_for_a_while():
        first = await model.exchange(question())
        again = await model.exchange(question())
        other = await model.exchange(question("something else"))
        await asyncio.sleep(61)
        return first, again, other, await model.exchange(question())

    first, again, other, later = world.run(ask_for_a_while())
    assert again == msgspec.structs.replace(first, usage=None)
    assert other.text == "You said: something else"
    assert later == first
    assert world.received == 3


def test_a_stream_is_kept_and_played_again():
    world = World()
    model = CachedModel(world.model("openai"), ttl=60, runtime=world.runtime)
    *words, reply = world.stream(model, question("one"))
    assert words == ["You", " said:", " one"]
    assert world.stream(model, question("one")) == ["You said: one", msgspec.structs.replace(reply, usage=None)]
    assert world.exchange(model, question("one")).text == "You said: one"
    assert world.received == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_is_done_to_an_answer_does_not_change_the_one_kept(streamed, tmp_path):
    path = tmp_path / "script.toml"
    path.write_text("replies = [{ tool = 'weather', arguments = { city = 'Oslo' } }]", encoding="utf-8")
    world = World(read_file(path))
    model = CachedModel(world.model("openai"), ttl=60, runtime=world.runtime)
    request = question(tools=(TOOL,))
    for _ in range(3):
        reply = world.stream(model, request)[-1] if streamed else world.exchange(model, request)
        assert reply.calls[0].arguments == {"city": "Oslo"}
        reply.calls[0].arguments["city"] = "elsewhere"
    assert world.received == 1


def test_what_fails_is_not_kept():
    world = World("401, ok")
    model = CachedModel(world.model("openai"), ttl=60, runtime=world.runtime)
    with pytest.raises(Exception, match="API key"):
        world.exchange(model, question())
    assert world.exchange(model, question()).text == "You said: hello"


def test_S2_10_a_store_that_fails_is_told_and_the_model_is_asked():
    class Broken:
        def get(self, key, now):
            raise OSError("disk gone")

        def put(self, key, value, now, ttl):
            raise OSError("disk gone")

    world = World()
    model = CachedModel(world.model("openai"), ttl=60, store=Broken(), runtime=world.runtime)
    assert world.exchange(model, question()).text == "You said: hello"
    assert [event.reason for event in world.of(SuppressedError)] == ["the cache of a model failed"] * 2


# Models of other packages


ACME = """
from contextlib import asynccontextmanager
from holdfast.providers import Offers, Reply

class Extension:
    id, contract = "acme", 1

    def start(self, runtime):
        return Acme()

class Acme:
    name = "acme/one"
    offers = Offers(tool_calling=True)

    async def exchange(self, request):
        return Reply(text="from acme", model="one")

    @asynccontextmanager
    async def stream(self, request, *, after_first="raise"):
        async def parts():
            yield "from "
            yield "acme"
            yield Reply(text="from acme", model="one")
        yield parts()
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    def install(source):
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[holdfast.providers]\nacme = acme_models:Extension\n", encoding="utf-8")
        (tmp_path / "acme_models.py").write_text(textwrap.dedent(source), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "acme_models", raising=False)

    yield install
    sys.modules.pop("acme_models", None)


def test_a_model_of_another_package_takes_its_place_in_a_chain(acme):
    acme(ACME)
    world = World("529, loop")
    with Extensions(runtime=world.runtime) as extensions:
        assert extensions.skipped == ()
        chain = ModelChain([world.model("anthropic"), extensions.providers["acme"]], runtime=world.runtime)
        assert world.exchange(chain, question()).text == "from acme"
        *words, reply = world.stream(chain, question())
        assert (words, reply.model) == (["from ", "acme"], "one")
        first = ModelChain([extensions.providers["acme"]], runtime=world.runtime)
        assert world.exchange(first, question(tools=(TOOL,))).text == "from acme"
    assert extensions.providers == {}


def test_what_is_no_model_is_left_out(acme):
    acme("class Extension:\n    id, contract = 'acme', 1\n    def start(self, runtime): return object()\n")
    with Extensions(runtime=World().runtime) as extensions:
        (skipped,) = extensions.skipped
        assert "one without name, offers, exchange, stream" in skipped.fault.message
