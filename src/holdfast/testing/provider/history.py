"""Conversations that the real providers reject, with their own words: calls without results, results without calls, and the like.

The rules are written here from the providers' documentation and error messages, and share no code with `holdfast.transcript`, which
is tested against them.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.provider.http import Request


_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")


def anthropic_mistake(request: Request) -> str | None:
    """Return the message of Anthropic's error for the conversation, or None."""
    return next(_anthropic_mistakes(request.list_of("messages")), None)


def _anthropic_mistakes(messages: list[dict[str, Any]]) -> Iterator[str]:
    # Claude Code puts settings between the turns, as messages of role `system`, some of them empty.
    messages = [message for message in messages if message.get("role") != "system"]
    if messages and messages[0].get("role") == "assistant":
        yield 'messages: first message must use the "user" role'
    yield from _anthropic_contents(messages)
    turns = _combined(messages)
    seen: set[str] = set()
    for at, (number, role, blocks) in enumerate(turns):
        if role == "assistant":
            if blocks and blocks[-1].get("type") in {"thinking", "redacted_thinking"}:
                yield f"messages.{number}: The final block in an assistant message cannot be `thinking`."
            yield from _anthropic_calls(turns, at, seen)
            yield from _anthropic_server_calls(turns, at)
        else:
            yield from _anthropic_results(turns, at)


def _anthropic_contents(messages: list[dict[str, Any]]) -> Iterator[str]:
    for number, message in enumerate(messages):
        is_final_answer = number == len(messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not is_final_answer:
            yield (
                f"messages.{number}: all messages must have non-empty content except for the optional final assistant message"
            )
        for block in _blocks(message):
            if block.get("type") == "text" and not str(block.get("text") or "").strip() and not is_final_answer:
                yield "messages: text content blocks must be non-empty"
        yield from _anthropic_fields(number, message)


def _anthropic_fields(number: int, message: dict[str, Any]) -> Iterator[str]:
    for place, block in enumerate(_blocks(message)):
        where, kind = f"messages.{number}.content.{place}", block.get("type")
        if kind == "tool_use":
            if message.get("role") == "user":
                yield f"messages.{number}: `tool_use` blocks can only be in `assistant` messages"
            if "input" not in block:
                yield f"{where}.tool_use.input: Field required"
            elif not isinstance(block["input"], dict):
                yield f"{where}.tool_use.input: Input should be a valid dictionary"
        elif kind == "thinking" and not block.get("signature"):
            missing = "signature" not in block
            yield (
                f"{where}.thinking.signature: Field required"
                if missing
                else f"{where}: Invalid `signature` in `thinking` block"
            )
        elif kind == "tool_result":
            for each in _blocks(block):
                if each.get("type") == "text" and not str(each.get("text") or "").strip() and block["content"] != "":
                    yield "messages: text content blocks must be non-empty"


def _combined(messages: list[dict[str, Any]]) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Return the turns as Anthropic takes them: consecutive messages of one role are one turn."""
    turns: list[tuple[int, str, list[dict[str, Any]]]] = []
    for number, message in enumerate(messages):
        role = str(message.get("role"))
        if turns and turns[-1][1] == role:
            turns[-1] = (number, role, [*turns[-1][2], *_blocks(message)])
        else:
            turns.append((number, role, _blocks(message)))
    return turns


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _ids(blocks: list[dict[str, Any]], kind: str, name: str) -> list[str]:
    return [str(block.get(name)) for block in blocks if block.get("type") == kind]


def _anthropic_calls(turns: list[tuple[int, str, list[dict[str, Any]]]], at: int, seen: set[str]) -> Iterator[str]:
    number, _, blocks = turns[at]
    calls = _ids(blocks, "tool_use", "id")
    for place, block in enumerate(blocks):
        if block.get("type") == "tool_use" and not _ANTHROPIC_ID.fullmatch(str(block.get("id"))):
            yield f"messages.{number}.content.{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if len(set(calls)) < len(calls) or seen & set(calls):
        yield "messages: `tool_use` ids must be unique"
    seen |= set(calls)
    following = turns[at + 1][2] if at + 1 < len(turns) else []
    # Results must stand before any other block.
    count = next((n for n, block in enumerate(following) if block.get("type") != "tool_result"), len(following))
    missing = [call for call in calls if call not in _ids(following[:count], "tool_result", "tool_use_id")]
    if missing:
        yield (
            f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
            "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        )


def _anthropic_results(turns: list[tuple[int, str, list[dict[str, Any]]]], at: int) -> Iterator[str]:
    number, _, blocks = turns[at]
    calls = _ids(turns[at - 1][2], "tool_use", "id") if at else []
    results = _ids(blocks, "tool_result", "tool_use_id")
    for place, name in enumerate(results):
        if name not in calls:
            yield (
                f"messages.{number}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
    for name, count in Counter(results).items():
        if count > 1:
            yield (
                f"messages.{number}.content.1: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {name}"
            )


def _anthropic_server_calls(turns: list[tuple[int, str, list[dict[str, Any]]]], at: int) -> Iterator[str]:
    number, _, blocks = turns[at]
    # An answer that the provider goes on with may have open calls: nothing follows it, or nothing but results.
    if all(block.get("type") == "tool_result" for _, _, following in turns[at + 1 :] for block in following):
        return
    later = [block for _, role, following in turns[at:] if role == "assistant" for block in following]
    answered = {block.get("tool_use_id") for block in later if str(block.get("type")).endswith("_tool_result")}
    for block in blocks:
        if block.get("type") == "server_tool_use" and block.get("id") not in answered:
            name = block.get("name")
            yield (
                f"messages.{number}: `{name}` tool use with id `{block.get('id')}` was found without a corresponding "
                f"`{name}_tool_result` block"
            )


def chat_mistake(request: Request) -> str | None:
    """Return the message of OpenAI's error for the conversation in Chat Completions, or None."""
    return next(_chat_mistakes(request.list_of("messages")), None)


def _chat_mistakes(messages: list[dict[str, Any]]) -> Iterator[str]:
    open_calls: list[str] = []
    calls: list[str] | None = None
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            name = str(message.get("tool_call_id"))
            if calls is None:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
            elif name not in calls:
                yield f"Invalid parameter: 'tool_call_id' of '{name}' not found in 'tool_calls' of previous message."
            elif name not in open_calls:
                yield f"Duplicate value for 'tool_call_id' of {name} in message[{number}]"
            else:
                open_calls.remove(name)
            continue
        yield from _chat_open(open_calls)
        calls, open_calls = None, []
        if (called := message.get("tool_calls")) is not None and message.get("role") == "assistant":
            if not called:
                yield (
                    f"Invalid 'messages[{number}].tool_calls': empty array. Expected an array with minimum length 1, "
                    "but got an empty array instead."
                )
            calls = [str(call.get("id")) for call in called]
            open_calls = list(calls)
            for name, count in Counter(calls).items():
                if count > 1:
                    yield f"Duplicate value for 'tool_call_id' of {name} in message[{number}]"
    yield from _chat_open(open_calls)


def _chat_open(calls: list[str]) -> Iterator[str]:
    if calls:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"The following tool_call_ids did not have response messages: {', '.join(calls)}"
        )


_RESPONSES_CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
}
_FOLLOWS_REASONING = frozenset({"reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request"})


def responses_mistake(request: Request) -> str | None:
    """Return the message of OpenAI's error for the conversation in Responses, or None."""
    return next(_responses_mistakes(request.document), None)


def _responses_mistakes(document: dict[str, Any]) -> Iterator[str]:
    given = document.get("input")
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    ids = Counter(item["id"] for item in items if isinstance(item.get("id"), str))
    for name, count in ids.items():
        if count > 1:
            yield f"Duplicate item found with id {name}. Remove duplicate items from your input and try again."
    yield from _lonely_reasoning(items)
    # The rest of the conversation is stored at the provider.
    if document.get("previous_response_id") or document.get("conversation") or "item_reference" in _types(items):
        return
    yield from _responses_pairs(items)


def _types(items: list[dict[str, Any]]) -> list[str]:
    return [str(item.get("type") or "message") for item in items]


def _lonely_reasoning(items: list[dict[str, Any]]) -> Iterator[str]:
    for item, following in zip(items, [*items, {}][1:], strict=True):
        kind = str(following.get("type"))
        has_item = following.get("role") == "assistant" or kind in _FOLLOWS_REASONING or kind.endswith("_call")
        if item.get("type") == "reasoning" and not has_item:
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."


def _responses_pairs(items: list[dict[str, Any]]) -> Iterator[str]:
    open_calls: dict[str, str] = {}
    seen: set[str] = set()
    for item, kind in zip(items, _types(items), strict=True):
        name = str(item.get("call_id"))
        if (spoken := _RESPONSES_CALLS.get(kind)) is not None:
            if name in seen:
                yield f"Duplicate 'call_id': {name}"
            seen.add(name)
            open_calls[name] = spoken
        elif (spoken := _RESPONSES_CALLS.get(kind.removesuffix("_output"))) is not None:
            if name not in seen:
                yield f"No tool call found for {spoken} output with call_id {name}."
            elif open_calls.pop(name, None) is None:
                yield (
                    f"Duplicate {kind} for call_id '{name}'. "
                    f"Each {kind.removesuffix('_output')} must have exactly one matching {kind}"
                )
    for name, spoken in open_calls.items():
        yield f"No tool output found for {spoken} {name}."


def converse_mistake(request: Request) -> str | None:
    """Return the message of Bedrock's error for the conversation in Converse, or None."""
    messages = request.list_of("messages")
    for number, message in enumerate(messages):
        calls = [block["toolUse"].get("toolUseId") for block in _parts(message, "content") if "toolUse" in block]
        following = _parts(messages[number + 1], "content") if number + 1 < len(messages) else []
        results = {block["toolResult"].get("toolUseId") for block in following if "toolResult" in block}
        missing = [str(call) for call in calls if call not in results]
        if missing:
            return f"Expected toolResult blocks at messages.{number + 1}.content for the following Ids: {', '.join(missing)}"
    return None


def gemini_mistake(request: Request) -> str | None:
    """Return the message of Gemini's error for the conversation, or None."""
    contents = request.list_of("contents")
    for number, content in enumerate(contents):
        calls = sum("functionCall" in part for part in _parts(content, "parts"))
        following = _parts(contents[number + 1], "parts") if number + 1 < len(contents) else []
        if calls and calls != sum("functionResponse" in part for part in following):
            return (
                "Please ensure that the number of function response parts is equal to the number of function call parts of the "
                "function call turn."
            )
    return None


def _parts(message: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = message.get(name)
    return [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
