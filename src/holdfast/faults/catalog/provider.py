"""PROVIDER_: failures of an LLM provider, or of a gateway in front of it."""

from __future__ import annotations

from holdfast.faults.catalog.entry import PERMANENT, REJECTED, TRANSIENT, Traits, entry
from holdfast.faults.enums import Category, NextActor, Schedule, Scope, Severity

_LIMIT: Traits = {
    **PERMANENT,
    "scope": Scope.CREDENTIAL,
    "category": Category.RATE_LIMIT,
    "http_status": 429,
    "close_code": 1013,
    "classed": "ProviderCapability/QuotaExhausted",
}
_REQUEST: Traits = {
    **PERMANENT,
    "next_actor": NextActor.DEVELOPER,
    "severity": Severity.WARNING,
    "classed": "ToolTerminal/InputInvalid",
}
_MISSING: Traits = {
    **PERMANENT,
    "scope": Scope.MODEL,
    "severity": Severity.WARNING,
    "classed": "ProviderCapability/MissingCapability",
}
_OVERFLOW: Traits = {
    **PERMANENT,
    "severity": Severity.WARNING,
    "next_actor": NextActor.MACHINE,
    "category": Category.OVERFLOW,
    "classed": "ProviderCapability/ContextWindowTooSmall",
    "http_status": 413,
    "task": "RESOURCE_EXHAUSTION/context",
}
_RESAMPLE: Traits = {
    **REJECTED,
    "retryable": True,
    "schedule": Schedule.ONCE,
    "next_actor": NextActor.MODEL,
    "classed": "ToolTerminal/OutputMalformed",
    "task": "TASK_FAILURE/output_format_failure",
    "http_status": 502,
}

ENTRIES = (
    # Temporary failures
    # Limits are counted per key, so other keys of the same provider stay usable.
    entry(
        "PROVIDER_RATE_LIMITED",
        TRANSIENT,
        "The provider is rate limiting these requests",
        "The service asks us to slow down. Waiting as long as it says.",
        "Wait: Holdfast sleeps exactly as long as the provider asks",
        "Send fewer requests at once, or ask the provider for a higher limit",
        aliases=("rate_limit", "ProviderTransient/RateLimited"),
        schedule=Schedule.RATE_LIMIT,
        scope=Scope.CREDENTIAL,
        category=Category.RATE_LIMIT,
        classed="ProviderTransient/RateLimited",
        http_status=429,
    ),
    # It is not retryable by default. The classifier makes it retryable only if the response requests a short delay.
    entry(
        "PROVIDER_DAILY_LIMIT",
        _LIMIT,
        "The provider's daily limit is used up",
        "Today's limit with the service is used up.",
        "Wait for the reset, or fall back to another model or provider",
        "Raise the limit or move to a paid tier",
        schedule=Schedule.RATE_LIMIT,
    ),
    # The schedule applies only if the response requests a short delay.
    entry(
        "PROVIDER_QUOTA_EXHAUSTED",
        _LIMIT,
        "The usage allowance is used up until it resets",
        "The usage allowance with the service is used up for now.",
        "Wait for the stated reset, or fall back to another provider",
        "Raise the limit in the provider's console",
        aliases=("ProviderCapability/QuotaExhausted",),
        schedule=Schedule.RATE_LIMIT,
    ),
    # There is no schedule, because waiting does not add credit to an account, whatever Retry-After says.
    entry(
        "PROVIDER_BILLING",
        _LIMIT,
        "The account has no credit left or billing is not active",
        "The service will not answer until its bill is paid.",
        "Add credit or fix the payment method in the provider's console",
        "Fail over to another provider meanwhile",
        aliases=("ProviderCapability/BillingRequired",),
        classed="ProviderCapability/BillingRequired",
        http_status=402,
    ),
    # Providers send it as 402, 403 or 429, but waiting never changes a plan.
    entry(
        "PROVIDER_ENTITLEMENT_MISSING",
        _LIMIT,
        "The account's plan does not include this",
        "The current plan with the service does not include this.",
        "Upgrade the plan, or send a smaller or simpler request",
        aliases=("ProviderCapability/EntitlementMissing",),
        classed="ProviderCapability/EntitlementMissing",
        http_status=402,
    ),
    # 529 is Anthropic's status. It is not a rate limit, so the key is not the cause.
    entry(
        "PROVIDER_OVERLOADED",
        TRANSIENT,
        "The provider is overloaded",
        "The service is overloaded right now. Trying again.",
        "Wait for the retry; Holdfast falls back if it lasts",
        aliases=("OVERLOADED",),
        http_status=529,
    ),
    entry(
        "PROVIDER_UNAVAILABLE",
        TRANSIENT,
        "The provider is unavailable",
        "The service is unavailable right now. Trying again.",
        "Wait for the retry; look at the provider's status page if it lasts",
        aliases=("unavailable", "SERVICE_UNAVAILABLE"),
    ),
    # The provider may have processed the request before the error, so the effect is not certain.
    entry(
        "PROVIDER_INTERNAL_ERROR",
        TRANSIENT,
        "The provider had an internal error",
        "The service had an internal error. Trying again.",
        "Wait for the retry; if only this request fails, simplify it",
        aliases=("ProviderTransient/Provider5xx",),
        http_status=502,
    ),
    # Only this model is starting. Other models of the provider answer.
    entry(
        "PROVIDER_MODEL_LOADING",
        TRANSIENT,
        "The model is still loading",
        "The model is starting up. Trying again in a moment.",
        "Wait until it is loaded; keep it loaded to avoid the wait",
        scope=Scope.MODEL,
    ),
    # The gateway stopped waiting, but the provider may still finish the request.
    entry(
        "PROVIDER_GATEWAY_TIMEOUT",
        TRANSIENT,
        "A gateway gave up waiting for the provider",
        "The service took too long to answer. Trying again.",
        "Stream the answer: without streaming, a long call reaches the gateway's limit again",
        category=Category.TIMEOUT,
        classed="ProviderTransient/NetworkTimeout",
        task="TASK_FAILURE/execution_timeout",
        http_status=504,
        exit_code=6,
    ),
    entry(
        "PROVIDER_TIMEOUT",
        TRANSIENT,
        "The provider did not answer in time",
        "The service did not answer in time. Trying again.",
        "Raise the attempt timeout if the model is simply slow, or stream",
        aliases=("timeout", "ProviderTransient/NetworkTimeout"),
        category=Category.TIMEOUT,
        classed="ProviderTransient/NetworkTimeout",
        task="TASK_FAILURE/execution_timeout",
        http_status=504,
        exit_code=6,
    ),
    # The request never left this process, so the provider's circuit must not count it.
    entry(
        "PROVIDER_POOL_TIMEOUT",
        TRANSIENT,
        "No connection was free in this client's own pool",
        "Too many requests are under way from here. Trying again.",
        "Enlarge the client's connection pool or lower the concurrency; the provider is not the cause",
        scope=Scope.PROCESS,
        category=Category.TIMEOUT,
        classed="ProviderTransient/NetworkTimeout",
        task="TASK_FAILURE/execution_timeout",
        exit_code=6,
    ),
    # It is retryable. But after the first item, only the caller may decide to repeat the call.
    entry(
        "PROVIDER_STREAM_CUT",
        TRANSIENT,
        "The answer was cut off in the middle of the stream",
        "The answer broke off. What arrived so far is kept.",
        "Choose what happens after the first token: raise, continue or restart",
        aliases=("STREAM_CUT", "StreamCutError"),
        category=Category.NETWORK,
        classed="ProviderTransient/NetworkTimeout",
        http_status=502,
    ),
    # This is a separate code, because the connection stays open and only the idle limit notices the failure.
    entry(
        "PROVIDER_STREAM_STALLED",
        TRANSIENT,
        "The stream went silent[ for {timeout_s} s]",
        "The answer stopped arriving. What arrived so far is kept.",
        "Raise the idle limit if the model sends nothing while it thinks",
        aliases=("STREAM_TIMEOUT",),
        category=Category.TIMEOUT,
        classed="ProviderTransient/NetworkTimeout",
        task="TASK_FAILURE/execution_timeout",
        http_status=504,
        exit_code=6,
    ),
    # Usually a proxy sent a page. The model cannot help, so Holdfast tries once more.
    entry(
        "PROVIDER_MALFORMED_RESPONSE",
        _RESAMPLE,
        "The provider's answer could not be read",
        "The service answered with something unreadable. Trying again.",
        "Look for a proxy that changes the body; check the base URL",
        next_actor=NextActor.MACHINE,
        scope=Scope.PROVIDER,
    ),
    # Sampling again often works, and works better if the model sees the validation error.
    entry(
        "PROVIDER_OUTPUT_INVALID",
        _RESAMPLE,
        "The model's output did not pass its check[: {reason}]",
        "The model's answer did not have the required form. Asking again.",
        "Feed the validation error back to the model and ask again",
        "Raise the output limit if the answer was cut off",
    ),
    # Local servers send an empty response when the context overflows, so the same request is not retried.
    entry(
        "PROVIDER_EMPTY_RESPONSE",
        {**_OVERFLOW, "next_actor": NextActor.DEVELOPER},
        "The provider answered with nothing",
        "The service answered with nothing.",
        "Check the prompt's length against the model's context: some servers overflow silently",
        "Check the stop reason and the content filters of the response",
        classed="ToolTerminal/OutputMalformed",
        task="TASK_FAILURE/output_format_failure",
        http_status=502,
    ),
    # Failures after which a changed request may work
    entry(
        "PROVIDER_BAD_REQUEST",
        _REQUEST,
        "The provider rejected the request",
        "The service did not accept the request.",
        "Read the provider's message: it names the field",
        aliases=("invalid", "BAD_REQUEST"),
    ),
    entry(
        "PROVIDER_CONTEXT_OVERFLOW",
        _OVERFLOW,
        "The input does not fit the model's context window",
        "The conversation has grown too long for this model.",
        "Compact the conversation, lower max_tokens, or choose a model with a larger window",
        aliases=("overflow", "CONTEXT_OVERFLOW", "ProviderCapability/ContextWindowTooSmall"),
    ),
    entry(
        "PROVIDER_REQUEST_TOO_LARGE",
        _OVERFLOW,
        "The request is too large",
        "The request is too large for the service.",
        "Shrink images and attachments, or send fewer",
        "Ask for a higher limit if one request exceeds the whole minute's allowance",
    ),
    # The user acts next, because only the person who wrote the prompt can change it.
    entry(
        "PROVIDER_CONTENT_POLICY",
        _REQUEST,
        "The provider rejected the content",
        "The AI service does not accept this content.",
        "Change the prompt; the same one will be rejected again",
        "Use a provider or setting whose policy allows it",
        aliases=("ProviderCapability/ContentRefused",),
        next_actor=NextActor.USER,
        classed="ProviderCapability/ContentRefused",
        http_status=422,
    ),
    entry(
        "PROVIDER_HISTORY_INVALID",
        _REQUEST,
        "The conversation sent to the provider is not well formed",
        "The conversation's record is damaged and has to be repaired.",
        "Answer every tool call with its result, keep the order of roles, keep signatures unchanged",
    ),
    entry(
        "PROVIDER_TOOL_SCHEMA_INVALID",
        _REQUEST,
        "The provider rejected a tool's schema",
        "A tool is described in a way the AI service does not accept.",
        "Fix the schema the message names; providers differ in what they allow",
    ),
    # A timeout while fetching is PROVIDER_TIMEOUT and is retried. This failure is not retried.
    entry(
        "PROVIDER_REMOTE_FETCH_FAILED",
        _REQUEST,
        "The provider could not fetch a file or URL of the request",
        "The AI service could not open a link in the request.",
        "Make the URL public, or send the content itself",
    ),
    entry(
        "PROVIDER_CAPABILITY_MISSING",
        _MISSING,
        "The model or server does not support this",
        "This model cannot do that.",
        "Choose a model that supports it, or leave the feature out",
        aliases=("ProviderCapability/MissingCapability",),
    ),
    # The model can answer, but this request was sent in the wrong mode.
    entry(
        "PROVIDER_MISSING_STREAMING",
        _MISSING,
        "Streaming is required or not available here",
        "This request has to be sent in another way: with streaming, or without.",
        "Switch streaming on for long answers, or off if the model cannot stream, and send again",
        aliases=("ProviderCapability/MissingStreaming",),
        classed="ProviderCapability/MissingStreaming",
        next_actor=NextActor.DEVELOPER,
        scope=Scope.REQUEST,
    ),
    entry(
        "PROVIDER_MISSING_TOOL_CALLING",
        _MISSING,
        "The model does not support tool calling",
        "This model cannot use tools.",
        "Choose a model with tool calling, or send no tools",
        aliases=("ProviderCapability/MissingToolCalling",),
        classed="ProviderCapability/MissingToolCalling",
    ),
    # The scope is the model, because a missing model must not open the provider's circuit.
    entry(
        "PROVIDER_MODEL_NOT_FOUND",
        _MISSING,
        "The model does not exist or is not open to this account",
        "The chosen model is not available.",
        "Check the model's name and the account's access to it",
        "List the models the account may use",
        aliases=("ProviderCapability/ModelNotFound",),
        category=Category.NOT_FOUND,
        classed="ProviderCapability/ModelNotFound",
        http_status=404,
        exit_code=3,
    ),
    # A wrong base URL is a mistake of this process, so no provider's circuit counts it.
    entry(
        "PROVIDER_ENDPOINT_NOT_FOUND",
        _MISSING,
        "The provider has nothing at that address",
        "The configured address of the service is wrong.",
        "Check base URL, API version and path",
        aliases=("not_found", "ProviderTransient/EndpointNotFound"),
        scope=Scope.PROCESS,
        category=Category.NOT_FOUND,
        classed="ToolTerminal/NotFound",
        http_status=404,
        exit_code=3,
    ),
    # This is permanent on this host: the same model will not fit the next time either.
    entry(
        "PROVIDER_OUT_OF_MEMORY",
        _MISSING,
        "The model does not fit the memory of the machine that serves it",
        "The model is too large for the machine it runs on.",
        "Load a smaller model or quantisation, shorten the context, or free memory",
        category=Category.UNAVAILABLE,
        http_status=507,
        severity=Severity.ERROR,
    ),
)
