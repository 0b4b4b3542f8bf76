"""The identifiers that runtimes, clouds, databases and tools print: `ECONNRESET`, `ImagePullBackOff`, `57P03`.

An identifier is one word that a program gives to one failure. It means the same in a sentence, in a log and in a field of a
body. The tables are sorted by meaning; the first code that matches decides, so the failures that never heal stand first.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.phrases import codes, phrases

if TYPE_CHECKING:
    from holdfast.classify.evidence import Evidence
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

__all__ = ["IDENTIFIERS", "identified"]


def _identifiers(text: str) -> Phrases:
    """Declare identifiers, as words of a text and as codes of a body."""
    return codes(text, phrases(" | ".join(text.split()) + "\n"))


def _spelled(text: str) -> Phrases:
    """Declare names in every spelling: `not_controller`, `NotController`, `NotControllerException`, `NotControllerError`."""
    joined = [name.replace("_", "") for name in text.split()]
    return _identifiers(f"{text} {' '.join(f'{name} {name}exception {name}error' for name in joined)}")


_TABLE: tuple[tuple[Code, Phrases], ...] = (
    # Kafka and MongoDB mark which of their failures pass. "Invalid session timeout" stands before the timeouts.
    ("PROVIDER_BAD_REQUEST", _spelled("invalid_session_timeout invalid_txn_timeout invalid_transaction_timeout")),
    (
        "PROVIDER_RATE_LIMITED",
        _spelled("throttling_quota_exceeded bandwidth_limit_exceeded"),
    ),
    (
        "PROVIDER_UNAVAILABLE",
        _spelled("""
        broker_not_available coordinator_load_in_progress coordinator_not_available election_in_progress eligible_leaders_not_available
        failed_to_satisfy_read_preference interrupted_at_shutdown interrupted_due_to_repl_state_change kafka_storage
        leader_not_available network_exception not_controller not_coordinator not_enough_replicas not_enough_replicas_after_append
        not_leader_for_partition not_leader_or_follower not_primary_no_secondary_ok not_primary_or_secondary not_writable_primary
        offset_not_available preferred_leader_not_available read_concern_majority_not_available_yet rebalance_in_progress
        replica_not_available shutdown_in_progress
        """)
        | _identifiers("kafka_storage_error kafkastorageexception networkexception"),
    ),
    ("CONN_DNS_FAILED", _spelled("host_not_found")),
    ("CONN_RESET", _spelled("pooled_connections_dropped")),
    ("PROVIDER_TIMEOUT", _spelled("exceeded_time_limit max_time_ms_expired request_timed_out")),
    (
        "TOOL_RESOURCE_BUSY",
        _spelled("""
        concurrent_transactions conflicting_operation_in_progress cursor_in_use lock_busy no_such_transaction stale_config stale_epoch
        stale_shard_version
        """),
    ),
    # Who asks, and what it may do. OAuth, AWS, Azure, Google, Slack, SMTP, Git hosts, SQLSTATE class 28.
    (
        "AUTH_TOKEN_EXPIRED",
        _identifiers("""
        invalid_grant login_required consent_required interaction_required token_expired expiredauthenticationtoken
        authenticationexpired expiredtokenexception requestexpired securitytokenexpired authtokenexpired sessionexpired
        session_expired jwt_expired tokenexpirederror
        """),
    ),
    (
        "AUTH_FAILED",
        _identifiers("""
        invalid_client unauthorized_client invalid_auth not_authed invalid_api_key badcredentials authfailure
        authenticationfailed authenticationfailedexception invalidauthenticationtoken invalidauthenticationtokentenant
        unrecognizedclientexception invalidclienttokenid signaturedoesnotmatch invalidaccesskeyid nocredentialproviders
        nocredentialsproviderror credentialsprovidererror credentialunavailableerror missingauthenticationtoken eneedauth
        enoauth smtpauthenticationerror saslauthenticationerror saslauthenticationexception authenticationexception
        unauthorizedexception unauthorizedaccess notauthorizedexception err_access_token invalid_credentials
        auth_error autherror account_inactive token_revoked user_disabled account_disabled invalidcredentialsexception mfa_required otp_required
        """),
    ),
    (
        "AUTH_FORBIDDEN",
        _identifiers("""
        missing_scope not_allowed_token_type restricted_action access_denied accessdenied accessdeniedexception
        authorizationfailed authorizationpermissionmismatch linkedauthorizationfailed unauthorizedoperation
        requestdisallowedbypolicy disallowedbypolicy iam_permission_denied service_disabled rbacforbidden not_in_channel
        insufficient_scope insufficientprivileges insufficientpermissions forbiddenexception org_login_required
        ekeyrejected
        """),
    ),
    (
        "PROVIDER_BILLING",
        _identifiers("""
        billing_disabled billingdisabled payment_required insufficient_funds billingnotenabled subscriptionnotactive
        overdue_balance budget_exceeded budgetexceeded card_declined balance_not_enough
        """),
    ),
    (
        # A quota that somebody must raise, or that comes back much later.
        "TOOL_QUOTA_EXHAUSTED",
        _identifiers("""
        quotaexceeded quota_exceeded limitexceeded limitexceededexception resourcequotaexceeded
        servicequotaexceededexception vcpulimitexceeded instancelimitexceeded vpclimitexceeded addresslimitexceeded
        volumelimitexceeded maxspotinstancecountexceeded dailylimitexceeded skuquotaexceeded dailylimitexceededunreg
        coresquotaexceeded toomanybuckets storagequotaexceeded storage_quota_exceeded exceededquota resource_quota_exceeded
        """),
    ),
    # What was asked for is wrong or missing.
    (
        "TOOL_FILE_NOT_FOUND",
        _identifiers("""
        imagepullbackoff errimagepull errimageneverpull invalidimagename manifest_unknown name_unknown repositorynotfound
        resourcenotfound resourcegroupnotfound parentresourcenotfound blobnotfound containernotfound nosuchkey
        nosuchbucket nosuchentity nosuchupload nosuchversion dbinstancenotfound instancenotfound
        channel_not_found user_not_found file_not_found message_not_found undefinedtable undefinedcolumn undefinedfunction
        invalidcatalogname index_not_found_exception repositorynotfounderror revisionnotfounderror entrynotfounderror
        no_such_file_or_directory err_file_not_found objectnotfound keynotfoundexception filenotfoundexception nosuchfileexception
        """),
    ),
    (
        "TOOL_EXECUTION_FAILED",
        _identifiers("""
        crashloopbackoff createcontainerconfigerror createcontainererror runcontainererror backofflimitexceeded
        containercannotrun err_module_not_found err_require_esm err_package_path_not_exported
        err_unknown_file_extension err_unsupported_dir_import err_dlopen_failed err_ossl_evp_unsupported eresolve
        ejsonparse eintegrity ebadengine ebadplatform etarget elifecycle eusage einvalidtagname epublishconflict
        eaddrinuse eaddrnotavail enotdir eisdir enotempty eexist erofs exdev enametoolong eloop classnotfoundexception noclassdeffounderror
        nosuchmethoderror uniqueviolation foreignkeyviolation notnullviolation checkviolation syntaxerrororaccessrule
        resourcealreadyexistsexception alreadyexistsexception bucketalreadyexists bucketalreadyownedbyyou
        entityalreadyexists resourceexistsexception e11000 conditionalcheckfailedexception dependencyviolation
        err_pnpm_outdated_lockfile err_pnpm_peer_dep_issues
        """),
    ),
    (
        "PROVIDER_BAD_REQUEST",
        _identifiers("""
        invalidparameter invalidparametervalue invalidparametercombination missingparameter malformedpolicydocument
        malformedquerystring invalidtemplate invalidtemplatedeployment invalidrequestcontent invalidresourcename
        unsupportedmediatype propertychangenotallowed err_invalid_url err_invalid_arg_type err_invalid_arg_value
        err_invalid_protocol err_invalid_char err_http_invalid_header_value err_unescaped_characters err_unknown_url_scheme
        err_invalid_redirect err_too_many_redirects err_unsafe_port err_blocked_by_client err_blocked_by_response
        err_blocked_by_csp err_blocked_by_administrator err_disallowed_url_scheme und_err_invalid_arg und_err_not_supported urischemenotsupported
        graphql_validation_failed graphql_parse_failed bad_user_input
        urisyntaxexception malformedurlexception unsupported_grant_type invalid_scope redirect_uri_mismatch invalid_redirect_uri
        """),
    ),
    # The cloud has no such machine in this place, or not for this subscription.
    ("PROVIDER_CAPABILITY_MISSING", _identifiers("skunotavailable")),
    # The network. A certificate stands before the handshake, the handshake before the connection.
    (
        "CONN_TLS_HANDSHAKE_FAILED",
        _identifiers("""
        err_tls_cert_altname_invalid depth_zero_self_signed_cert self_signed_cert_in_chain cert_has_expired
        unable_to_get_issuer_cert unable_to_get_issuer_cert_locally unable_to_verify_leaf_signature cert_untrusted
        cert_not_yet_valid err_ssl_protocol_error err_ssl_version_or_cipher_mismatch err_cert_invalid
        err_ssl_wrong_version_number err_ssl_packet_length_too_long eproto sslpeerunverifiedexception certificateexception
        certpathvalidatorexception sslhandshakeexception sec_error_unknown_issuer trustanchornotfound hostnamemismatch
        curle_peer_failed_verification curle_ssl_cacert curle_ssl_connect_error err_ssl_unsupported_protocol
        """),
    ),
    (
        "CONN_DNS_FAILED",
        _identifiers("""
        eai_again enotfound eai_noname eai_fail eai_nodata enodata esrvfail efqdn unknownhostexception
        err_name_not_resolved err_name_resolution_failed err_dns_timed_out curle_couldnt_resolve_host
        curle_couldnt_resolve_proxy wsahost_not_found dnserror dnsresolutionfailure unresolvedaddressexception
        nameresolutionerror name_not_resolved
        """),
    ),
    (
        "CONN_REFUSED",
        _identifiers("""
        econnrefused connectionrefused err_connection_refused wsaeconnrefused curle_couldnt_connect
        err_proxy_connection_failed err_tunnel_connection_failed
        """),
    ),
    (
        "CONN_UNREACHABLE",
        _identifiers("""
        enetunreach ehostunreach enetdown ehostdown err_internet_disconnected err_address_unreachable wsaenetunreach
        wsaehostunreach noroutetohostexception networkunreachable hostunreachable err_network_access_denied
        """),
    ),
    (
        "CONN_TIMEOUT",
        _identifiers("""
        etimedout und_err_connect_timeout err_connection_timed_out err_socket_connection_timeout connecttimeoutexception
        wsaetimedout curle_operation_timedout err_timed_out httpconnecttimeoutexception connecttimeouterror eidletimeout
        """),
    ),
    (
        "PROVIDER_TIMEOUT",
        _identifiers("""
        esockettimedout err_socket_timeout und_err_headers_timeout und_err_body_timeout sockettimeoutexception
        httptimeoutexception readtimeoutexception timeoutexception opentimeout readtimeout writetimeout deadlineexceeded
        deadline_exceeded deadlineexceedederror gatewaytimeout gatewaytimeoutexception request_timeout requesttimeout
        requesttimeoutexception requesttimedout operationtimedout operation_timeout timelimitexceeded err_request_timeout
        querycanceled querycancelederror statement_timeout timedout
        """),
    ),
    (
        "CONN_RESET",
        _identifiers("""
        econnreset econnaborted epipe enetreset enotconn eshutdown connectionreset connectionaborted brokenpipe
        err_connection_reset err_connection_closed err_connection_aborted err_empty_response err_network_changed
        err_network_io_suspended err_network err_failed err_http2_protocol_error err_http2_ping_failed err_quic_protocol_error
        err_http2_stream_error err_http2_stream_cancel err_http2_session_error err_http2_goaway_session err_stream_premature_close
        err_incomplete_chunked_encoding err_content_length_mismatch err_socket_closed err_stream_destroyed err_stream_write_after_end
        err_http2_invalid_session und_err_socket und_err_closed und_err_destroyed und_err_res_exceeded_size
        nghttp2_internal_error nghttp2_refused_stream nghttp2_cancel nghttp2_enhance_your_calm rst_stream
        wsaeconnreset wsaeconnaborted curle_recv_error curle_send_error curle_got_nothing curle_partial_file curle_http2
        curle_http2_stream incompletemessage unexpectedeof socketexception nohttpresponseexception eofexception
        closedchannelexception connectionclosedexception prematurecloseexception connectexception httprequestexception
        nobrokersavailable kafkaconnectionerror brokertransportfailure autoreconnect serverdisconnected channelclosed
        connection_failure connectiondoesnotexist sqlclient_unable_to_establish_sqlconnection operationinterrupted
        """),
    ),
    # The other side is full, starting or broken.
    (
        "PROVIDER_RATE_LIMITED",
        _identifiers("""
        throttlingexception throttlederror throttledexception throttled requestlimitexceeded toomanyrequestsexception
        provisionedthroughputexceededexception requestthrottled requestthrottledexception bandwidthlimitexceeded
        priorrequestnotcomplete toomanyrequests too_many_requests ratelimited rate_limited rate_limit_exceeded
        userratelimitexceeded ratelimitexceeded ratelimitexceededexception concurrentrequestlimitexceeded
        clientthrottled subscriptionrequeststhrottled ec2throttledexception
        """),
    ),
    (
        "PROVIDER_OVERLOADED",
        _identifiers("""
        insufficientinstancecapacity insufficientcapacity insufficienthostcapacity insufficientcapacityerror
        zone_resource_pool_exhausted zone_resource_pool_exhausted_with_details allocationfailed zonalallocationfailed
        overconstrainedallocationrequest serverbusy server_busy slowdown servertoobusy capacitynotavailable
        resourcepoolexhausted circuit_breaking_exception es_rejected_execution_exception esrejectedexecutionexception unschedulable failedscheduling model_overloaded resources_exhausted nodehaspressure
        """),
    ),
    (
        "PROVIDER_UNAVAILABLE",
        _identifiers("""
        noreplicas not_enough_replicas not_enough_replicas_after_append notenoughreplicas
        serviceunavailable service_unavailable serviceunavailableexception temporarily_unavailable temporarilyunavailable
        internalservererror internalserverexception internalfailure badgateway bad_gateway upstreamerror notleaderforpartition
        notleaderorfollower leadernotavailable not_leader_for_partition notcontroller notprimaryerror primarysteppeddown
        cannotconnectnow adminshutdown admin_shutdown crashshutdown busyloadingerror clusterdown masterdown nodenotready
        backenderror networkpluginnotready nohealthyupstream upstream_reset_before_response_started
        err_response_headers_truncated servicebusy nodeshutdown
        """),
    ),
    (
        "TOOL_RESOURCE_BUSY",
        _identifiers("""
        anotheroperationinprogress operationinprogress resourceinuse resourceinuseexception concurrentmodificationexception
        concurrentupdateexception optimisticlockexception operationabortedexception conflictingoperation operationaborted
        serializationfailure serialization_failure deadlockdetected deadlock_detected
        locknotavailable lock_not_available conflictexception resourceconflictexception transactionconflictexception
        transactioncanceledexception transactioninprogressexception writeconflict lockwaittimeout ebusy etxtbsy
        scaleoperationinprogress sqlite_busy sqlite_locked
        resourcebusy
        """),
    ),
    # This machine.
    (
        "TOOL_OUT_OF_MEMORY",
        _identifiers("""
        oomkilled oomkill outofmemoryexception enomem err_worker_out_of_memory
        """),
    ),
    (
        "SYS_RESOURCE_EXHAUSTED",
        _identifiers("enospc edquot emfile enfile diskfull disk_full insufficientresources evicted"),
    ),
)
IDENTIFIERS = reduce(or_, (group for _, group in _TABLE))
"""Every identifier, as one group."""


def identified(evidence: Evidence) -> Code | None:
    """Return the code of the first identifier in the text; None if it has none."""
    return evidence.first_match(_TABLE)
