//! The cluster's certificate.

use std::time::Duration;

use comity_runtime::checks::{Check, CheckList};
use comity_runtime::{BrokerEndpoints, ClientTls, Clock, IdentityDir, IdentitySource, SpiffeId};

use crate::config::Config;
use crate::enrollment::member_brokers::brokers_of_member;

const CERTIFICATE_CHECK: &str = "certificate";
const AGAIN: &str = "get a token with `comity cluster invite CLUSTER --replace`, remove the directory identity/ from \
    the state directory, and run `comity-agent join TOKEN`";
/// The agent renews after two thirds of a day; less than this is left only if it did not run.
const RENEW_SOON: Duration = Duration::from_secs(2 * 3_600);

/// How a member calls its brokers.
pub(super) struct MemberAccess {
    /// Its own SPIFFE id.
    pub(super) id: SpiffeId,
    pub(super) brokers: BrokerEndpoints,
    pub(super) tls: ClientTls,
}

/// Access to the brokers, if the certificate is valid.
pub(super) fn check(config: &Config, clock: &dyn Clock, list: &mut CheckList) -> Option<MemberAccess> {
    let directory = IdentityDir::new(config.state_dir.join("identity"));
    if !directory.exists() {
        let detail = format!("{} holds no certificate: this cluster has not joined", config.state_dir.display());
        list.push(Check::failed(
            CERTIFICATE_CHECK,
            detail,
            "get a token with `comity cluster invite`, and run `comity-agent join TOKEN`",
        ));
        return None;
    }
    let identity = match directory.load() {
        Ok((_, identity)) => identity,
        Err(error) => {
            list.push(Check::failed(CERTIFICATE_CHECK, error.to_string(), AGAIN));
            return None;
        }
    };
    let (id, now) = (identity.id().clone(), clock.now());
    let Ok(left) = identity.not_after().duration_since(now) else {
        list.push(Check::failed(CERTIFICATE_CHECK, format!("the certificate of {id} has expired"), AGAIN));
        return None;
    };
    let minutes = left.as_secs() / 60;
    let detail = format!("{id}, valid for {} h {} min", minutes / 60, minutes % 60);
    list.push(if left < RENEW_SOON {
        Check::warning(
            CERTIFICATE_CHECK,
            detail,
            "run the agent, which renews it; it cannot be renewed once it has expired",
        )
    } else {
        Check::ok(CERTIFICATE_CHECK, detail)
    });
    match brokers_of_member(&config.state_dir, &config.brokers) {
        Ok(brokers) => {
            let brokers = brokers.endpoints();
            let roots = identity.roots().clone();
            Some(MemberAccess { id, brokers, tls: ClientTls::new(roots, IdentitySource::new(identity).subscribe()) })
        }
        Err(error) => {
            list.push(Check::failed("brokers", error.to_string(), "set brokers in the configuration"));
            None
        }
    }
}
