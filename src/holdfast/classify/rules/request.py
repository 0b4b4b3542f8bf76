"""Rules for rejected requests: content, history, tools, model, a missing feature, a file that cannot be fetched."""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import ENDED, codes, phrases

_POLICY = phrases("""
    content filter | content_filter | content management policy | content policy | content policies | usage policy
    usage policies | usage guidelines | safety system | safety settings | safety reasons | safety filter
    safety guidelines | flagged | blocked by content | content exists risk | requires moderation
    inappropriate content | prohibited content | prohibited use | responsible ai | harmful content | unsafe content
    output blocked | prompt was blocked | response was blocked | blocked due to | violates our | violation of our
    violate our | potential violation | sensitive words | sensitive content | sensitive information
    potentially unsafe | acceptable use | refused to answer | refused to generate | guardrail intervened | content violates
    recitation
    data may contain | unsafe or sensitive | can't assist with that | cannot assist with that | due to safety
    biological risk | content was flagged | nsfw | 敏感 | 违规 | 不安全内容
""")

_ACCOUNT_POLICY = phrases("data policy", "settings/privacy", "account is blocked", "account has been blocked")
_GONE = phrases("""
    no model is loaded | no model loaded | model not found | model_not_found | is not found for api version | unknown model
    invalid model
    not a valid model | no such model | model does not exist | model not exist | has been deprecated
    been decommissioned | is deprecated | no longer available | no longer supported | no endpoints found for
    no allowed providers | deployment for this resource does not exist | not a supported model
    model is not available | model is not supported | unsupported model | model not available | failed to load model
    model unavailable | was retired | been retired | no longer exists | model may not exist | model not supported
    unable to access model | could not find model | no models loaded | model isn't available | is not a chat model
    requested model is not | model you requested | models/manifests | model manifest: file | unable to load model
    error loading model | could not load model | unknown model architecture | 模型不存在 | 不支持的模型
""")
# The model exists, but not for this account.
_NOT_FOR_YOU = phrases("""
    for your account | for your organization | on your plan | for your plan | in your plan | for your subscription
    for your workspace
    with your account | with your subscription | for your project | for this organization | for your tier | to your account
""")
_MISSING_FOR_ALL = phrases("""
    does not exist | doesn't exist | not exist | model not found | not found | deprecated | retired | decommissioned
""")
# A model's name may be between the words: "The model `gpt-9` does not exist".
_MODEL_MISSING = re.compile(
    r"\bmodels?\b.{0,120}?\b(?:not found|does not exist|doesn't exist|not exist|could not be found|cannot be found|unavailable)\b",
    re.DOTALL,
)

_MISSING = phrases("""
    not found | does not exist | doesn't exist | not exist | could not be found | cannot be found | unavailable
""")
_NOT_FOUND = codes("not_found_error")
# "model is temporarily unavailable" with a 5xx is an outage, not a missing model.
_FOR_NOW = phrases("temporarily", "temporary", "provider is currently unavailable", "provider is unavailable")
_HISTORY = phrases("""
    ids were found without | tool_result' block | unexpected 'tool_use_id'
    must be followed by tool messages | tool_call_ids did not have | no tool output found | no tool call found
    insufficient tool messages | roles are supported | could not be decrypted | roles must alternate | should alternate with | must alternate
    without its required following item | without its required | thought signature | thought_signature
    signature in thinking block | thinking' or 'redacted_thinking | thinking blocks | invalid 'signature'
    function response parts | function call turn comes immediately | role 'tool' must be a response
    preceding message with 'tool_calls' | final assistant content | last message must | last message role | first message must
    at least one message | messages: text content blocks must be non-empty | content field is required
    all messages must have non-empty content | reasoning_content | expected last role | unexpected role
    conversation must start | does not support assistant message prefill | tool call id | tool_call_id
    encrypted content | encrypted_content | duplicate item | multiple 'tool_result' | toolresult blocks | tooluse blocks
    expected toolresult | must end with a user message | ensure that function call | missing corresponding
    tool_use' ids must be unique | tool_use.id | tool_use.input | thinking.signature | blocks can only be in | final block in an assistant message | tool use with id
    duplicate function_call_output | duplicate 'call_id | duplicate call_id | tool_calls': empty array
""")
_SCHEMA = phrases("""
    invalid schema for function | invalid schema for response_format | invalid function name | input_schema
    function_declarations | tools[ | json schema is invalid | invalid tool | tools. | tool schema
    function parameters | unsupported schema | schema is too complex | too many states for serving
    error parsing grammar | failed to parse grammar | is not a valid tool name | tool names must be unique | invalid 'tools
    toolconfig | tool parameters | failed to validate tool
""")
_TOOLS_MISSING = phrases("""
    does not support tools | doesn't support tools | does not support tool | doesn't support tool
    does not support function | tool use is not supported | tool calling is not supported | support tool use
    tools are not supported | function calling is not supported | 'tool_choice' is not supported
    enable-auto-tool-choice
""")
_STREAMING = phrases("""
    streaming is required | streaming is strongly recommended | only support stream mode | only supports streaming
    stream must be set to true | streaming is not supported | does not support streaming | verified to stream
    must be set to stream
""")
_CAPABILITY = phrases("""
    does not support | doesn't support | not supported | unsupported | isn't supported | is not available for this
    not yet available | must be verified | not compatible | is incompatible | not enabled for
    no endpoints found that support | not_supported | cannot be used with | not allowed with this model
    isn't available | does not exist for this model | not multimodal | is not a multimodal | not implemented
    does not work with | only supports | only support
""")
_FETCH = phrases("""
    while downloading | failed to download | unable to download | cannot fetch content | could not fetch
    failed to fetch image | error downloading | url_roboted | unable to fetch | failed to retrieve
    unable to access the url | could not download
""")

_NOT_A_FILE = phrases("credential", "a token", "access token", "the token")
_IN_TIME = phrases("timeout", "timed out")
_SERVER_AWAY = phrases(
    "server unavailable", "service unavailable", "connection refused", "connection reset", "max retries exceeded"
)
_ITS_OWN_STATUS = frozenset({401, 403, 429, 502, 503, 504})
"""With these statuses the caller's own request failed: "HTTP 401 error: Unable to fetch record"."""
_BAD_OUTPUT = phrases("""
    model did not call a tool | failed to call a function | failed to generate json | failed to validate json
    failed_generation | failed to parse tool call | attempted to call tool | not in request.tools | malformed_function_call
    invalid tool call | unavailable tool | not conform to | does not conform to | invalid sequence as part of tooluse
    selected invalid tools | selected an invalid tool | produced an invalid tool call | malformed tool call | failed to use a tool | did not use a tool | didn't use a tool
    no object generated | did not match schema | did not match the schema | does not match schema
""")


@applies_when(_POLICY, not_outage=True, not_defect=True)
def content_policy(evidence: Evidence) -> Verdict | None:
    """A content filter, moderation, a usage policy or a safety system rejected the content."""
    # The text of a rate limit often quotes the terms of service.
    if evidence.status != 429 and not evidence.matches(_ACCOUNT_POLICY):
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


@applies_when(ENDED)
def filtered_stream(evidence: Evidence) -> Verdict | None:
    """A content filter ended the stream."""
    if evidence.stream == "filtered":
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


# What the network did. It is the cause of a sentence such as "failed to download".
_LINE = phrases("""
    enotfound | econnrefused | econnreset | etimedout | eai_again | getaddrinfo | no such host | dial tcp | could not resolve host
    couldn't resolve host | name resolution | name or service not known | nodename nor servname | dns error | temporary failure resolving
    connection refused | connection reset | connection timed out | connection aborted | broken pipe | no route to host
    network is unreachable | host is unreachable | certificate has expired | certificate verify failed | certificate problem
    self-signed certificate | self signed certificate | x509: | unable to get local issuer | alternative certificate subject
    tls handshake | ssl handshake
""")


@applies_when(_FETCH)
def remote_fetch(evidence: Evidence) -> Verdict | None:
    """The provider could not fetch a URL of the request.

    A timeout while fetching is temporary, other failures are not.
    """
    if evidence.exit_code is not None or evidence.rpc_code is not None:
        # A tool that downloads is not a provider that fetches.
        return None
    if evidence.matches(_NOT_A_FILE) or evidence.status in _ITS_OWN_STATUS or evidence.matches(_SERVER_AWAY):
        return None
    answered = evidence.status is not None and 400 <= evidence.status < 500
    if not answered and evidence.matches(_LINE):
        # The sentence names its cause. A 4xx says that the caller's address is wrong; nothing else does.
        return None
    return Verdict(code="PROVIDER_TIMEOUT" if evidence.matches(_IN_TIME) else "PROVIDER_REMOTE_FETCH_FAILED")


@applies_when(_HISTORY, not_outage=True, not_defect=True)
def history(_: Evidence) -> Verdict | None:
    """The history is wrong: tool calls without results, roles out of order, changed signatures."""
    return Verdict(code="PROVIDER_HISTORY_INVALID")


@applies_when(_TOOLS_MISSING, not_outage=True)
def missing_tools(_: Evidence) -> Verdict | None:
    """The model cannot call tools."""
    return Verdict(code="PROVIDER_MISSING_TOOL_CALLING")


@applies_when(_STREAMING, not_outage=True)
def streaming(_: Evidence) -> Verdict | None:
    """The call must be streamed, or must not be."""
    return Verdict(code="PROVIDER_MISSING_STREAMING")


@applies_when(_SCHEMA, not_outage=True)
def tool_schema(evidence: Evidence) -> Verdict | None:
    """The provider does not accept the schema of a tool."""
    # The names of packages look the same on stderr: "com.android.tools.build".
    return Verdict(code="PROVIDER_TOOL_SCHEMA_INVALID") if evidence.exit_code is None else None


@applies_when(_BAD_OUTPUT)
def output_check(_: Evidence) -> Verdict | None:
    """The model's output failed the provider's own check. Sampling again helps."""
    return Verdict(code="PROVIDER_OUTPUT_INVALID")


@applies_when(_CAPABILITY, not_outage=True)
def missing_capability(evidence: Evidence) -> Verdict | None:
    """The model or the account does not support a parameter, a modality or a mode."""
    if evidence.exit_code is not None and evidence.status is None and "model" not in evidence.text:
        # An option or an engine that a tool does not support is not a capability of a model.
        return None
    # Local runtimes send 500 for what they do not support.
    rejected = evidence.status is None or 400 <= evidence.status <= 501
    # Without a status an exception's words may be about the program itself. With one, an SDK passes on a server's words.
    served = evidence.raised is None or evidence.status is not None
    return Verdict(code="PROVIDER_CAPABILITY_MISSING") if rejected and served else None


@applies_when(
    phrases("chat_template is not set", "chat template functions", "no chat template", "not have a chat template")
)
def chat_template(_: Evidence) -> Verdict | None:
    """A base model cannot hold a conversation, in any wrapper."""
    return Verdict(code="PROVIDER_CAPABILITY_MISSING")


_NOT_THE_ENDPOINT = phrases("""
    invalid content type | unexpected content type | unexpected content-type | invalid content-type | expected text/event-stream
""")


@applies_when(_NOT_THE_ENDPOINT)
def wrong_endpoint(evidence: Evidence) -> Verdict | None:
    """The address answers, but not in this protocol: another address is needed."""
    served = evidence.status is not None and evidence.status >= 400
    return None if served or evidence.exit_code else Verdict(code="PROVIDER_ENDPOINT_NOT_FOUND")


_REJECTED_PART = phrases("""
    unsupported part | unsupported content | unsupported message content | unsupported image | unsupported media type
    requires --jinja | mmproj | runtime is not available | requires mlx | requires a newer version | embedding from image
    is not supported - hint | prompt template | chat template | cannot use | can't use
    cannot be combined | cannot be used | unsupported language | unsupported locale | unsupported format | unsupported file
    unsupported model | unsupported type | unsupported operation | unsupported parameter | unsupported value | unsupported encoding
""")
_SERVER_DEFECT = phrases("""
    object is not subscriptable | object has no attribute | unsupported operand type | object is not iterable
    object is not callable | cannot read properties of | is not a function | value is not callable
    raise_exception | notimplementederror | unable to generate parser | invalid file magic
    cannot unmarshal | dimension mismatch | wrong dimension | vector dimension | violates unique | violates foreign
    violates not-null | violates check | duplicate key | invalid input syntax | unknown column | no such table | no such column
    invalid input batch | cannot access local variable | referenced before assignment | is not defined | division by zero
    list index out of range | maximum recursion depth | unexpected keyword argument | positional argument | nonetype
    nil pointer dereference | nullpointerexception | null reference | undefined method | cannot read property
    index out of bounds | binary not found | executable not found | command not found | module not found | no module named
    no such file | is not installed | not installed | please install | is not configured | library not found | plugin not found | template not found | cannot find module
    environment variable | unique constraint | not json serializable | json body into | missing field | already allocated
    bind source path | invalid mount | keyerror | typeerror | attributeerror | importerror | modulenotfounderror | templatenotfound
""")
# The server's own statement names something that its database lacks.
_SCHEMA_LACKS = re.compile(
    r"\b(?:column|relation|table|function|procedure|schema)\b.{0,80}\b(?:does not|doesn't) exist\b"
)
# A store that stopped writing stays so until somebody makes room.
_STORE_CLOSED = phrases("""
    store is read-only | is read-only | in read-only mode | read only mode | no space left on device | disk is full | disk full
    disk usage exceeded | disk quota exceeded | readonly database
""")


@applies_when(_REJECTED_PART | _SERVER_DEFECT | _STORE_CLOSED | _MISSING)
def never_heals(evidence: Evidence) -> Verdict | None:
    """A 500 that stays: a part that the server does not know, a type error in its code, a store without room."""
    if evidence.status != 500:
        return None
    if evidence.matches(_REJECTED_PART):
        return Verdict(code="PROVIDER_CAPABILITY_MISSING")
    if not evidence.matches(_SERVER_DEFECT | _STORE_CLOSED) and not _SCHEMA_LACKS.search(evidence.text):
        return None
    return Verdict(code="PROVIDER_INTERNAL_ERROR", retryable=False)


@applies_when(phrases("无可用渠道 | available channel for model\n"))
def no_channel(evidence: Evidence) -> Verdict | None:
    """A relay has no channel for this model in this group. That is how it is set up, also if it sends a 503."""
    return Verdict(code="PROVIDER_MODEL_NOT_FOUND") if "model" in evidence.text or "模型" in evidence.text else None


_OLD_CLIENT = phrases("""
    update to the latest version | upgrade to the latest version | update your extension | update your client | update your app | update your cli | update your ide
    upgrade your client | upgrade your cli | upgrade your app | upgrade your extension | client version is no longer | client version is too old | client is too old
    client is outdated | app version is no longer | minimum supported client | minimum client version
""")
_RATES = phrases("too many requests", "rate limit", "rate limited", "per minute", "quota")


@applies_when(_OLD_CLIENT)
def old_client(evidence: Evidence) -> Verdict | None:
    """The server serves no client as old as this one, whatever status it sends. A newer one must be installed."""
    turned_away = evidence.source in (Source.HTTP, Source.SSE, Source.GRPC) and (evidence.status or 400) < 500
    return Verdict(code="PROVIDER_BAD_REQUEST") if turned_away and not evidence.matches(_RATES) else None


_CLOSED_TO_YOU = phrases("not have access to it", "not have access to the model", "not have access to this model")
_OLD_SETTING = phrases("deprecated for this model", "deprecated with this model", "deprecated for the model")


@applies_when(_GONE | _MISSING | _NOT_FOUND, not_outage=True, not_defect=True)
def model_missing(evidence: Evidence) -> Verdict | None:
    """The model has a wrong name, is retired, or is not open to this account."""
    if evidence.rpc_code is not None:
        return None
    if evidence.exit_code is not None:
        # Programs have models of many kinds. Only a provider is in doubt whether it is missing or closed to the caller.
        closed = evidence.matches(_CLOSED_TO_YOU) and _MODEL_MISSING.search(evidence.text)
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND") if closed else None
    if (evidence.status is None or evidence.status >= 500) and evidence.matches(_FOR_NOW):
        return None
    if "grpc:unavailable" in evidence.codes or "grpc:deadline_exceeded" in evidence.codes:
        # The model could not be loaded because the process that loads it is away.
        return None
    if evidence.matches(_OLD_SETTING):
        # A parameter is not taken any more. The model is there.
        return Verdict(code="PROVIDER_BAD_REQUEST")
    if evidence.status in (401, 403) and "model" not in evidence.text:
        # "This website is no longer supported" is about no model, and the status names who may not.
        return None
    if evidence.matches(_NOT_FOR_YOU) and not evidence.matches(_MISSING_FOR_ALL):
        return Verdict(code="AUTH_FORBIDDEN")
    if evidence.matches(_GONE) or _MODEL_MISSING.search(evidence.text) or _only_names_it(evidence):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    return None


def _only_names_it(evidence: Evidence) -> bool:
    """Whether the whole message is `model: NAME`, as Anthropic writes it."""
    return evidence.matches(_NOT_FOUND) and evidence.text.startswith("model: ")


# EARLY runs before the rules for overflow and rate limits, because its sentences may contain "too many" and "limit".
FIRST = (old_client, no_channel)
EARLY = (remote_fetch, history, output_check, content_policy, filtered_stream)
MODELS = (model_missing,)
LATE = (wrong_endpoint, chat_template, missing_tools, streaming, tool_schema, missing_capability, never_heals)
