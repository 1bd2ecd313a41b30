//! The join token: unspent, for a cluster that policy names. Asking the broker does not spend it.

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::checks::{Check, CheckList, clock_check};
use comity_runtime::telemetry::TraceInjector;
use comity_runtime::{BrokerEndpoints, ClientTls, Clock, ClusterName, JoinToken, tls};
use tonic::{Code, Status};

use super::check_brokers::{CALL_TIMEOUT, ahead_ms};
use super::check_udp::UdpProbe;

const TOKEN_CHECK: &str = "token";
const MINUTE_MS: u64 = 60_000;

/// The token, and the clock that is compared with the broker's.
pub(super) struct TokenQuestion<'a> {
    pub(super) token: &'a JoinToken,
    /// The cluster that it names.
    pub(super) cluster: &'a ClusterName,
    pub(super) clock: &'a dyn Clock,
    /// Whether an interrupted join on this host may have used the token: its key gets the certificate again.
    pub(super) is_pending: bool,
}

/// The broker's answer, if the token is valid.
pub(super) async fn check(
    question: &TokenQuestion<'_>,
    brokers: &BrokerEndpoints,
    tls: &ClientTls,
    probe: Option<&UdpProbe>,
    list: &mut CheckList,
) -> Option<v1::CheckJoinResponse> {
    let request = v1::CheckJoinRequest {
        cluster: question.cluster.to_string(),
        secret: question.token.secret.expose().to_vec(),
        udp_endpoints: probe.map(|probe| probe.endpoints.clone()).unwrap_or_default(),
        nonce: probe.map(|probe| probe.nonce.to_vec()).unwrap_or_default(),
    };
    let mut client = FederationServiceClient::with_interceptor(tls::connect(brokers, tls), TraceInjector);
    let sent = question.clock.unix_ms();
    let answer = match tokio::time::timeout(CALL_TIMEOUT, client.check_join(request)).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) if question.is_pending && status.code() == Code::Unauthenticated => {
            list.push(Check::ok(
                TOKEN_CHECK,
                "used by an interrupted join of this host, whose key gets the certificate",
            ));
            return None;
        }
        Ok(Err(status)) => {
            list.push(refused(&status));
            return None;
        }
        Err(_) => {
            let detail = format!("no broker answered within {} s", CALL_TIMEOUT.as_secs());
            list.push(Check::failed(TOKEN_CHECK, detail, "try again; if it persists, ask whoever runs the brokers"));
            return None;
        }
    };
    let cluster = question.cluster;
    let minutes = answer.expires_at_ms.saturating_sub(answer.time_ms).div_ceil(MINUTE_MS);
    list.push(Check::ok(TOKEN_CHECK, format!("valid for cluster {cluster}, for {minutes} more minutes")));
    list.push(if answer.institution.is_empty() {
        Check::failed(
            "policy",
            format!("cluster {cluster} is not in the policy any more"),
            "ask a maintainer to list it in `clusters` of its Institution document",
        )
    } else if answer.replaces {
        Check::warning(
            "policy",
            format!("cluster {cluster} of {} is a member already: joining replaces its agent", answer.institution),
            "stop the other agent for good before you join",
        )
    } else {
        Check::ok("policy", format!("cluster {cluster} belongs to {}", answer.institution))
    });
    list.push(clock_check(ahead_ms(sent, question.clock.unix_ms(), answer.time_ms)));
    Some(answer)
}

fn refused(status: &Status) -> Check {
    let message = status.message();
    let (detail, remedy) = message.split_once("; ").unwrap_or((message, ""));
    let remedy = match status.code() {
        Code::Unavailable if remedy.is_empty() => "try again; if it persists, ask whoever runs the brokers",
        _ => remedy,
    };
    Check::failed(TOKEN_CHECK, detail, remedy)
}
