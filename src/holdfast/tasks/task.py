"""`Task` and `TaskResult`: what is to be done, and what became of it.

Invariant: a task is a value. It holds no state of its execution, so it can be retried, changed, split and stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.tasks.output.xml import context_use, options_of
from holdfast.tasks.progress import NO_PROGRESS
from holdfast.views import task as view
from holdfast.views.task import Status

__all__ = [
    "MATCHING",
    "ContextUse",
    "DataUsage",
    "Status",
    "Task",
    "TaskError",
    "TaskResult",
    "as_json",
    "filled",
    "joined_text",
    "plain",
    "plain_fault",
    "tokens_in",
]

_REQUESTED = frozenset(
    {"name", "inputs", "output", "turns", "seconds", "max_depth", "subtype", "criteria", "supervision"}
)
"""What a request for a subtask may set, beside its description."""
_RENAMED = {"file_paths": "files", "template_hints": "hints", "context_management": "use"}
"""Options that have other names in a request."""
MATCHING = "associative_matching"
"""The subtype of a task that looks for context: one that fails is tried once more by itself."""

_DIGITS = 8
"""Of the hash in a label."""

if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from typing_extensions import TypeVar

    from holdfast.tasks.output.format import XmlOutput

    T = TypeVar("T", default=Any)
    OutputForm: TypeAlias = str | Mapping[str, Any] | XmlOutput | UnionType | _SpecialForm
else:
    from typing import TypeVar

    T = TypeVar("T")
    OutputForm = Any

_ATOMIC = "atomic"
"""The type of a request for a subtask."""
_DESCRIBED = frozenset({"type", "description"})
_TEXTS = ("name", "agent", "background", "subtype", "criteria")

Supervision: TypeAlias = Literal["ignore", "restart", "fail_parent"]
Inherit: TypeAlias = Literal["full", "subset", "none"]


class TaskError(view.TaskDocumentFields, HoldfastError):
    """A task failed. `error.result` is the failed `TaskResult`, with what there was of the output; `error.fault` says why.

    `type`, `reason`, `message` and `details` are those of its task document.

    For example:
        except TaskError as error:
            print(error.fault.code, error.result.content)
            if error.reason == "subtask_failure":
                request = error.details["subtaskRequest"]
    """

    code = "TASK_UNEXPECTED"

    @property
    def _document(self) -> dict[str, Any]:
        return view.write(plain_fault(self.fault))

    _result: TaskResult | None = None

    @classmethod
    def of(cls, result: TaskResult) -> Self:
        """Return the error of a failed result."""
        assert result.fault is not None
        error = cls(result.fault)
        error._result = result
        return error

    @property
    def result(self) -> TaskResult:
        """The failed result."""
        return self._result or TaskResult.of_fault(self.fault)


class ContextUse(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What a task knows of the task that it is a part of: `ContextUse(inherit="full")`. Options that contradict each other raise.

    inherit: all of the parent's context, what of it fits the task, or nothing.
    fresh: look up context for this task, in the index of the task system. It cannot be combined with an inherited context.
    accumulate: what an agent that asked for several subtasks sees of the earlier ones, beside the last: their whole results, only their
    notes, or nothing.
    """

    inherit: Inherit = "subset"
    fresh: bool = False
    accumulate: Literal["full_output", "notes_only"] | None = "full_output"

    def __post_init__(self) -> None:
        options.one_of("context.inherit", self.inherit, get_args(Inherit))
        if self.accumulate is not None:
            options.one_of("context.accumulate", self.accumulate, ("full_output", "notes_only"))
        if self.fresh and self.inherit != "none":
            raise InvalidError.saying(
                "context.fresh", "inherit='none' beside it", f"inherit={self.inherit!r}", "TASK_MODEL_INVALID"
            )

    def document(self) -> dict[str, Any]:
        """Return it as the `context_management` of a request or a template."""
        return {
            "inherit_context": self.inherit,
            "accumulate_data": self.accumulate is not None,
            "accumulation_format": self.accumulate or "notes_only",
            "fresh_context": "enabled" if self.fresh else "disabled",
        }


class Task(options.Options, Generic[T], frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """Something for an agent to do: `Task("Summarise {doc}", inputs={"doc": text}, output=Summary, turns=8)`.

    With a type as `output` it is a `Task[Summary]`, and `TaskSystem.run` returns a `Summary`.

    prompt: what to do. `{name}` is replaced by the input of that name; `{{` is a brace.
    output: the form of the result: a type, a JSON Schema, one of the words `object`, `array`, `string[]`, `number`, `boolean`, or
    `XmlOutput`. None: any text.
    turns: how often its performer may answer. seconds, usd, tokens: what it may spend, with its parts and subtasks.
    context: the most tokens that its prompt may have, or a share of the window of its agent's model: `context=0.8`. max_output: the most
    tokens of its result.

    Wrong options raise `InvalidError`.
    """

    prompt: str
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    output: type[T] | OutputForm | None = None
    name: str = ""
    """Its name in messages; without one the beginning of its prompt."""
    agent: str = ""
    """Which of the system's agents performs it; empty: its default one."""
    background: str = ""
    """What it should know besides its inputs."""
    use: ContextUse = ContextUse()
    turns: int | None = None
    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None
    context: int | float | None = None
    max_output: int | None = None
    strict: bool | None = None
    """Whether output that is no JSON at all is a failure. None: if `output` is a type or a JSON Schema."""
    reasks: int = 2
    """How often the agent is asked again for output of the right form."""
    decompose: bool = True
    """Whether it may be split when it is too large for its budget."""
    estimate: int | None = None
    """How large it is, in tokens; None: the tokens of its text. The parts of a task must be smaller than it."""
    subtype: str = ""
    """What kind of task it is: one with the subtype `associative_matching` that fails is tried once more by itself."""
    criteria: str = ""
    """When its result is good, in words: its performer reads it, and so does the reader of its result."""
    files: tuple[str, ...] = ()
    """Files that it should know, by their paths below the folder of the system's `ContextIndex`."""
    hints: tuple[str, ...] = ()
    """Without `agent`: the first of these that names one of the system's agents performs it."""
    supervision: Supervision = "restart"
    """What its failure does to the task that asked for it. `restart`: it is tried once more, then its parent fails. `fail_parent`: its
    parent fails. `ignore`: its parent goes on, with the failed result."""
    max_depth: int | None = None
    """How deep its subtasks may be nested; None: the limit of the system."""
    unchanged: int | None = NO_PROGRESS
    """How many rounds may end alike before it is halted; None: any number, for a task that waits for the world."""

    def __post_init__(self) -> None:
        prompt: Any = self.prompt
        if not isinstance(prompt, str) or not prompt.strip():
            raise InvalidError.at("task.prompt", "a text", prompt, "TASK_MODEL_INVALID")
        inputs: Any = self.inputs
        if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs):
            raise InvalidError.at("task.inputs", "a dict with names as keys", inputs, "TASK_INPUT_INVALID")
        for name in _TEXTS:
            if not isinstance(text := getattr(self, name), str):
                raise InvalidError.at(f"task.{name}", "a text", text, "TASK_MODEL_INVALID")
        for name in ("turns", "tokens", "max_output", "estimate"):
            options.count(f"task.{name}", getattr(self, name), optional=True)
        if isinstance(self.context, float):
            options.share("task.context", self.context)
        else:
            options.count("task.context", self.context, optional=True)
        options.one_of("task.supervision", self.supervision, get_args(Supervision))
        for name in ("files", "hints"):
            given: Any = getattr(self, name)
            if not (isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given)):
                raise InvalidError.at(f"task.{name}", "a list of texts", given, "TASK_MODEL_INVALID")
            msgspec.structs.force_setattr(self, name, tuple(given))
        options.count("task.unchanged", self.unchanged, least=2, optional=True)
        options.count("task.reasks", self.reasks, least=0)
        options.count("task.max_depth", self.max_depth, least=0, optional=True)
        options.seconds("task.seconds", self.seconds, optional=True)
        options.at_least("task.usd", self.usd, 0, optional=True)

    @classmethod
    def from_xml(cls, template: str) -> Task:
        """Return the task that a template describes: `Task.from_xml("<task><description>List them</description></task>")`.

        Raises TASK_XML_PARSE_ERROR, TASK_XML_INVALID or TASK_MODEL_INVALID; the message says where.
        """
        given = options_of(template)
        if "use" in given:
            given["use"] = ContextUse(**given["use"])
        return cls(**given)

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or self.prompt.strip().splitlines()[0][:80]

    @property
    def label(self) -> str:
        """What events, logs and the audit trail call it: its name, or a hash of it. They never hold a prompt."""
        return self.name or f"task {self.signature[:_DIGITS]}"

    @property
    def signature(self) -> str:
        """The same for two tasks that ask the same thing about the same inputs. A chain of subtasks that has it twice is a cycle."""
        identity = [self.agent, self.subtype, " ".join(self.prompt.split()), self.inputs]
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic", enc_hook=repr)).hexdigest()

    def text(self) -> str:
        """Return the prompt with its inputs filled in. Raises TASK_INPUT_INVALID if one is missing."""

        def missing(field: str) -> HoldfastError:
            known = ", ".join(sorted(self.inputs)) or "none"
            reason = f"the prompt names the input {{{field}}}, and the inputs are: {known}. Write {{{{ for a brace"
            return HoldfastError(Fault.of("TASK_INPUT_INVALID", context={"reason": reason}))

        return filled(self.prompt, self.inputs, missing)

    @property
    def size(self) -> int:
        """How large it is, in tokens."""
        return tokens_in(self.background + self.text()) if self.estimate is None else self.estimate

    @classmethod
    def from_request(cls, request: Any) -> Task:
        """Return the task of a request for a subtask, such as the one in the fault of a subtask that failed."""
        if not isinstance(request, Mapping) or not isinstance(request.get("description"), str):
            expected = "a Task, or {type, description, inputs}"
            raise InvalidError.at("subtask request", expected, request, "TASK_INPUT_INVALID")
        allowed = _REQUESTED | _DESCRIBED | _RENAMED.keys()
        if unknown := [name for name in request if name not in allowed]:
            raise options.unknown_of("subtask request", unknown[0], request[unknown[0]], tuple(sorted(allowed)))
        if (kind := request.get("type", _ATOMIC)) != _ATOMIC:
            raise InvalidError.at("subtask request.type", _ATOMIC, kind, "TASK_INPUT_INVALID")
        given = {name: request[name] for name in _REQUESTED & request.keys()}
        given |= {ours: request[theirs] for theirs, ours in _RENAMED.items() if theirs in request}
        if "use" in given:
            if not isinstance(given["use"], Mapping):
                raise InvalidError.at(
                    "subtask request.context_management", "an object", given["use"], "TASK_INPUT_INVALID"
                )
            given["use"] = ContextUse(**context_use(given["use"]))
        return cls(request["description"], **given)

    def request(self) -> dict[str, Any]:
        """Return it as a request for a subtask, as it stands in the fault of a subtask that failed. `from_request` reads it."""
        found: dict[str, Any] = {"type": _ATOMIC, "description": self.prompt, "inputs": self.inputs}
        for name in sorted(_REQUESTED - found.keys()):
            value = getattr(self, name)
            # A type is no JSON.
            if value != _NOTHING[name] and (name != "output" or isinstance(value, (str, Mapping))):
                found[name] = value
        if self.files:
            found["file_paths"] = list(self.files)
        if hints := (*((self.agent,) if self.agent else ()), *self.hints):
            found["template_hints"] = list(hints)
        if self.use != ContextUse():
            found["context_management"] = self.use.document()
        return found

    def with_(self, **changes: Any) -> Task:
        """Return the task with changes: `task.with_(prompt="Retry: …", turns=4)`."""
        return msgspec.structs.replace(self, **changes)


_NOTHING = {field.name: field.default for field in msgspec.structs.fields(Task)}


def filled(prompt: str, values: Mapping[str, Any], missing: Callable[[str], Exception]) -> str:
    """Return a prompt with a value in the place of each `{name}`; raise what `missing` returns for a name without a value."""
    parts: list[str] = []
    for literal, field, form, conversion in _pieces(prompt):
        parts.append(literal)
        if field is None:
            continue
        if field not in values or form or conversion:
            raise missing(field)
        value = values[field]
        parts.append(value if isinstance(value, str) else as_json(value))
    return "".join(parts)


def tokens_in(text: str) -> int:
    """Return about how many tokens a text has: a quarter of its bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def _pieces(prompt: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(prompt))
    except ValueError as error:
        reason = f"the prompt's braces do not match ({error}). Write {{{{ for a brace"
        raise HoldfastError(Fault.of("TASK_MODEL_INVALID", context={"path": "task.prompt", "reason": reason})) from None


def joined_text(texts: Iterable[str]) -> str:
    """Return the texts of parts as one, with an empty line between them."""
    return "\n\n".join(texts)


def _content_of(had: Any) -> str:
    """Return what a failed task had as a text. Texts of parts are joined as those of a complete task are."""
    is_texts = isinstance(had, list) and all(isinstance(each, str) for each in had)
    return joined_text(had) if is_texts else as_json(had)


def plain(value: Any) -> Any:
    """Return a value of any output type as JSON values."""
    return msgspec.to_builtins(value, enc_hook=_fields_of)


def plain_fault(fault: Fault) -> Fault:
    """Return the fault with its partial output as JSON values."""
    if fault.partial is None or isinstance(fault.partial.payload, str | None):
        return fault
    partial = msgspec.structs.replace(fault.partial, payload=plain(fault.partial.payload))
    return msgspec.structs.replace(fault, partial=partial)


def _fields_of(value: Any) -> Any:
    dump = getattr(type(value), "model_dump", None)
    return str(value) if dump is None else dump(value, mode="json", warnings=False)


def as_json(value: Any) -> str:
    """Return a value of any output type as JSON."""
    return msgspec.json.encode(value, enc_hook=_fields_of).decode()


class DataUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task used, with its parts, its subtasks and the tries that failed: `result.usage.peak_context`."""

    turns: int = 0
    """Answers."""
    context: int = 0
    """Tokens of all its prompts together, as they were counted before they were sent."""
    output: int = 0
    """Tokens of all its answers together."""
    peak_context: int = 0
    """Tokens of its largest prompt."""
    peak_output: int = 0
    """Tokens of its largest answer."""

    def with_answer(self, prompt: int, output: int) -> DataUsage:
        """Return it with one answer more."""
        return DataUsage(
            turns=self.turns + 1,
            context=self.context + prompt,
            output=self.output + output,
            peak_context=max(self.peak_context, prompt),
            peak_output=max(self.peak_output, output),
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with the names of a task document."""
        return {
            "turns": self.turns,
            "context": self.context,
            "output": self.output,
            "peakContext": self.peak_context,
            "peakOutput": self.peak_output,
        }


class TaskResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What became of a task. `content` is its text; `value` is that as a value of its `output`. Notes hold metadata only.

    A result that is FAILED is partial: `content` is what there was, and `notes["error"]` says why.
    """

    content: str = ""
    status: Status = Status.COMPLETE
    criteria: str = ""
    """When it is good, in words: those of its task, unless its performer has others."""
    value: T | None = None
    notes: dict[str, Any] = {}
    fault: Fault | None = None
    """Why it failed."""
    usage: DataUsage | None = None
    """What it used; None if that is not known."""

    @classmethod
    def of_fault(cls, fault: Fault, notes: dict[str, Any] | None = None) -> TaskResult:
        """Return the failed result of a fault."""
        had = None if fault.partial is None or fault.partial.is_empty else fault.partial.payload
        content = had if isinstance(had, str) else "" if had is None else _content_of(had)
        if isinstance(score := fault.context.get("success_score"), (int, float)):
            notes = {"successScore": score, **(notes or {})}
        found = view.write_result(plain_fault(fault), notes=notes).get("notes", {})
        return cls(content=content, status=Status.FAILED, notes=found, fault=fault)

    def document(self) -> dict[str, Any]:
        """Return it in the form `{content, status, criteria?, parsedContent?, notes}`."""
        notes = self.notes if self.usage is None else {**self.notes, "dataUsage": self.usage.document()}
        found: dict[str, Any] = {"content": self.content, "status": str(self.status), "notes": notes}
        if self.criteria:
            found["criteria"] = self.criteria
        if self.value is not None and not isinstance(self.value, str):
            found["parsedContent"] = plain(self.value)
        return found
