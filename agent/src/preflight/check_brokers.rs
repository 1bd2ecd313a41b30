//! The brokers: each is reached by TCP, and proves by TLS that it belongs to the federation.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::checks::{Check, CheckList};
use comity_runtime::tls::{self, DialError};
use comity_runtime::{BrokerEndpoints, ClientTls, Clock};

const BROKERS_CHECK: &str = "brokers";
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of one call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether a broker was reached.
pub(super) async fn check(brokers: &BrokerEndpoints, tls: &ClientTls, list: &mut CheckList) -> bool {
    let dials = brokers.addresses().iter().map(|address| tls::dial(address, tls, DIAL_TIMEOUT));
    let dialled = futures::future::join_all(dials).await;
    let reached = dialled.iter().filter(|result| result.is_ok()).count();
    for (address, result) in brokers.addresses().iter().zip(dialled) {
        list.push(match result {
            Ok(_) => Check::ok(BROKERS_CHECK, format!("{address} is a broker of this federation")),
            Err(error) if reached > 0 => Check::warning(BROKERS_CHECK, format!("{address}: {error}"), remedy(&error)),
            Err(error) => Check::failed(BROKERS_CHECK, format!("{address}: {error}"), remedy(&error)),
        });
    }
    reached > 0
}

fn remedy(error: &DialError) -> &'static str {
    match error {
        DialError::Timeout(_) | DialError::Tcp(_) => {
            "check the address, that a broker runs there, and that firewalls let this host open TCP connections to it"
        }
        DialError::Certificate(_) => "check this host's clock and the agent's certificate",
        DialError::Tls(_) => "check that no proxy between this host and the broker ends TLS",
        DialError::SomebodyElse(_) => "check the address; if the federation was founded again, ask for a new token",
    }
}

/// Milliseconds by which this host's clock is ahead of log time.
pub(super) async fn clock_difference(
    brokers: &BrokerEndpoints,
    tls: &ClientTls,
    clock: &dyn Clock,
) -> Result<i64, String> {
    let mut client = FederationServiceClient::new(tls::connect(brokers, tls));
    let sent = clock.unix_ms();
    let answer = tokio::time::timeout(CALL_TIMEOUT, client.get_federation(v1::GetFederationRequest {})).await;
    let answer = answer.map_err(|_| format!("no broker answered within {} s", CALL_TIMEOUT.as_secs()))?;
    let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
    Ok(ahead_ms(sent, clock.unix_ms(), answer.time_ms))
}

/// Milliseconds by which a clock is ahead that read `sent` and `received` around an answer with the broker's time.
pub(super) fn ahead_ms(sent: u64, received: u64, broker: u64) -> i64 {
    let middle = sent.midpoint(received);
    i64::try_from(i128::from(middle) - i128::from(broker)).unwrap_or(i64::MAX)
}
