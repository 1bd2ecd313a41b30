//! Whether the cluster still takes part in its federation, and with which keys.

use comity_agent_model::status_reasons::revocation;
use comity_agent_state::store::{Store, other_owner};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::checks::{Check, CheckList};
use comity_runtime::{IdentityKey, tls};
use tonic::Status;

use super::check_brokers::CALL_TIMEOUT;
use super::check_certificate::MemberAccess;
use crate::app::IDENTITY_KEY_FILE;
use crate::config::Config;

const MEMBERSHIP_CHECK: &str = "membership";
const IDENTITY_KEY_CHECK: &str = "identity key";
const RECORDS_CHECK: &str = "records";

/// Whether the brokers serve this cluster. A broker that cannot say so is no reason to fail: the next call tells why.
pub(super) async fn check(config: &Config, member: &MemberAccess, list: &mut CheckList) -> bool {
    list.extend(other_records(config, member));
    let Some(cluster) = member.id.as_cluster() else { return true };
    let mut client = FederationServiceClient::new(tls::connect(&member.brokers, &member.tls));
    let request = v1::GetClusterRequest { cluster: cluster.to_string(), ..v1::GetClusterRequest::default() };
    match tokio::time::timeout(CALL_TIMEOUT, client.get_cluster(request)).await {
        Ok(Ok(answer)) => {
            list.push(Check::ok(MEMBERSHIP_CHECK, format!("{cluster} is a member")));
            let registered = answer.into_inner().cluster.map(|cluster| cluster.identity_key).unwrap_or_default();
            list.push(identity_key(config, &registered));
            true
        }
        Ok(Err(status)) => {
            let revoked = revoked(&status);
            let takes_part = revoked.is_none();
            list.extend(revoked);
            takes_part
        }
        Err(_) => true,
    }
}

/// The failed check of a cluster that brokers refuse.
fn revoked(status: &Status) -> Option<Check> {
    let detail = revocation(status)?;
    Some(Check::failed(MEMBERSHIP_CHECK, detail.reason, detail.remedy))
}

/// Compares the identity key with the one with which the cluster joined.
fn identity_key(config: &Config, registered: &str) -> Check {
    let path = config.state_dir.join(IDENTITY_KEY_FILE);
    let public = match IdentityKey::load(&path) {
        Ok(key) => key.public().to_string(),
        Err(error) => return Check::failed(IDENTITY_KEY_CHECK, error.to_string(), join_again(config)),
    };
    if public == registered {
        return Check::ok(IDENTITY_KEY_CHECK, public);
    }
    let path = path.display();
    Check::failed(
        IDENTITY_KEY_CHECK,
        format!(
            "{path} has the key {public}, and this cluster joined with {registered}: its certificate cannot be renewed"
        ),
        format!("restore {path}, or {}", join_again(config)),
    )
}

fn join_again(config: &Config) -> String {
    let state = config.state_dir.display();
    format!(
        "get a token with `comity cluster invite CLUSTER --replace`, and run `comity-agent join TOKEN --state {state}`"
    )
}

/// The failed check of a state directory with another cluster's records.
fn other_records(config: &Config, member: &MemberAccess) -> Option<Check> {
    let checked = Store::owner_of(&config.state_dir)
        .and_then(|owner| other_owner(&config.state_dir, owner, &member.id.to_string()));
    let remedy = "use this cluster's own state directory (--state DIR), or restore its files";
    checked.err().map(|error| Check::failed(RECORDS_CHECK, error.to_string(), remedy))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_proto::{ErrorDetails, error_status};
    use comity_runtime::SystemEntropy;
    use comity_runtime::checks::Outcome;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_refusal_of_the_member_fails_the_check_with_the_brokers_remedy() {
        let detail = v1::ErrorDetail {
            code: "revoked".to_owned(),
            reason: "cluster west was evicted by ingrid".to_owned(),
            remedy: "run `comity cluster invite west`".to_owned(),
            ..v1::ErrorDetail::default()
        };
        let check = revoked(&error_status(Code::PermissionDenied, &detail, ErrorDetails::new())).unwrap();
        assert_eq!((check.result, check.detail.as_str()), (Outcome::Failed, "cluster west was evicted by ingrid"));
        assert_eq!(check.remedy, "run `comity cluster invite west`");
        assert!(revoked(&Status::unavailable("no leader")).is_none());
    }

    #[test]
    fn a_key_that_the_brokers_do_not_know_fails_the_check() {
        let home = tempfile::tempdir().unwrap();
        let config = Config { state_dir: home.path().to_owned(), ..Config::default() };
        assert_eq!(identity_key(&config, "").result, Outcome::Failed);
        let key = IdentityKey::load_or_generate(&home.path().join(IDENTITY_KEY_FILE), &SystemEntropy).unwrap();
        assert_eq!(identity_key(&config, &key.public().to_string()).result, Outcome::Ok);
        let other = identity_key(&config, "ed25519:another");
        assert!(other.result == Outcome::Failed && other.detail.contains("identity-key.pem"), "{other:?}");
        assert!(other.remedy.contains("restore") && other.remedy.contains("--replace"), "{other:?}");
    }
}
