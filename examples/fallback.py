"""A call with a fallback and a last resort: your own function is what recovers."""

from __future__ import annotations

from holdfast import Fault, Ok, recover
from holdfast.testing import run, script

# Stand-ins for two services: one is down, the other answers once and then has no credit.
claude, gpt = script("429;retry-after=7, 529*9"), script("ok:An anchor., 429;code=insufficient_quota*9")


@recover("claude")
async def answer(question: str) -> str:
    return str(await claude.acall(question))


@answer.fallback
async def by_openai(question: str) -> str:
    return str(await gpt.acall(question))


answer.cached(ttl=300)  # the last good answer to the same question, if it is not older than five minutes


@answer.degraded
def sorry(fault: Fault, question: str) -> str:
    return f"I cannot answer {question!r} now. {fault.for_user()}"


async def main() -> None:
    match await answer.outcome("What is a holdfast?"):
        case Ok(value=text, via=via, attempts=attempts):
            print(f"{text} (by {via} after {len(attempts)} attempts)")
    print(await answer("What is kelp?"))


run(main())  # in virtual time: the seven seconds pass at once
print(f"calls: {claude.calls} of claude, {gpt.calls} of gpt")
