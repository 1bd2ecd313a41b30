//! `comity doctor`: checks this client's settings, and the federation as the caller sees it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comity_agent::Config;
use comity_agent::preflight::check_agent_host;
use comity_policy::{Roles, SourceFile};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::checks::{Check, CheckList, Outcome, clock_check};
use comity_runtime::{BrokerChannel, BrokerEndpoints, ClientTls, Clock as _, SystemClock, connect, private_files};
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::{Session, call};

const DOCTOR_EXAMPLES: &str = "\
Examples:
  comity doctor
  comity doctor --config /var/lib/comity-agent/agent.yaml      checks the agent of this host too
  comity doctor -o json | jq -r '.checks[] | select(.result == \"failed\") | .remedy'

Exit code 1 if a check failed. Changes nothing.
";

/// A broker that is down must not delay the others' answers.
const REACH_LIMIT: Duration = Duration::from_secs(5);
/// Calls to each broker. The quickest one compares the clocks.
const CALLS_TO_A_BROKER: usize = 4;
/// A certificate that ends so soon is a warning.
const SOON: Duration = Duration::from_secs(3 * 24 * 3_600);
const MS_PER_DAY: u64 = 24 * 3_600 * 1_000;

const BROKERS_CHECK: &str = "brokers";
const IDENTITY_CHECK: &str = "identity";
const LEADER_CHECK: &str = "leader";
const RIGHTS_CHECK: &str = "rights";

/// `comity doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Configuration file of this host's agent, to check the agent too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis {
    checks: CheckList,
    /// Checks of this host's agent; absent without `--config`.
    agent_checks: Option<CheckList>,
}

impl Answer for Diagnosis {
    fn table(&self, _now_ms: u64) -> Sheet {
        let agent = self.agent_checks.as_ref().map(|checks| format!("\nagent:\n{}", checks.text()));
        format!("{}{}", self.checks.text(), agent.unwrap_or_default()).into()
    }
}

impl DoctorArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] if a check failed, or if the agent's configuration cannot be read.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut diagnosis = Diagnosis { checks: check_client(session).await, agent_checks: None };
        if let Some(path) = &self.config {
            let config = Config::read(path)
                .map_err(|error| Failure::configuration(error.to_string()).field("--config", path.display()))?;
            diagnosis.agent_checks = Some(check_agent_host(&config, &SystemClock::new()).await);
        }
        session.print(&diagnosis)?;
        let lists = [Some(&diagnosis.checks), diagnosis.agent_checks.as_ref()];
        match lists.into_iter().flatten().map(|checks| checks.count(Outcome::Failed)).sum() {
            0 => Ok(()),
            failed => Err(Failure::refused("check-failed", format!("checks failed: {failed}"))
                .remedy("follow the remedies above, and run the command again")),
        }
    }
}

async fn check_client(session: &Session) -> CheckList {
    let mut list = CheckList::default();
    let endpoints = session.endpoints().map_err(|failure| list.push(failed(BROKERS_CHECK, failure))).ok();
    let tls = session.tls().map_err(|failure| list.push(failed(IDENTITY_CHECK, failure))).ok();
    let caller = tls.as_ref().and_then(|_| check_identity(session, &mut list));
    let (Some(endpoints), Some(tls)) = (endpoints, tls) else { return list };
    if !check_brokers(&endpoints, &tls, &mut list).await {
        return list;
    }
    let leader = check_leader(&endpoints, &tls).await;
    let has_leader = leader.result == Outcome::Ok;
    list.push(leader);
    if let (true, Some(caller)) = (has_leader, caller) {
        list.push(check_rights(&endpoints, &tls, &caller).await);
    }
    list
}

fn failed(name: &str, failure: Failure) -> Check {
    Check::failed(name, failure.reason, failure.remedy)
}

/// The caller's SPIFFE id. The session has read the identity already, so that it is usable.
fn check_identity(session: &Session, list: &mut CheckList) -> Option<String> {
    let directory = session.identity_dir().ok()?;
    let (_, identity) = directory.load().ok()?;
    if let Err(error) = private_files::check(&directory.key_file()) {
        list.push(Check::failed(IDENTITY_CHECK, error.to_string(), "run the chmod command"));
    }
    let left = identity.not_after().duration_since(SystemClock::new().now()).unwrap_or_default();
    let hours = left.as_secs() / 3_600;
    let detail = format!("{}, valid for {} d {} h", identity.id(), hours / 24, hours % 24);
    list.push(if left < SOON {
        Check::warning(IDENTITY_CHECK, detail, "ask a maintainer for a new certificate before it ends")
    } else {
        Check::ok(IDENTITY_CHECK, detail)
    });
    Some(identity.id().to_string())
}

/// Asks each broker by itself. Whether one answered.
async fn check_brokers(endpoints: &BrokerEndpoints, tls: &ClientTls, list: &mut CheckList) -> bool {
    let answers = endpoints.addresses().iter().map(|address| ask(address, tls));
    let answers = futures::future::join_all(answers).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    let mut ahead = None;
    for (address, answer) in endpoints.addresses().iter().zip(answers) {
        list.push(match answer {
            Ok(BrokerAnswer { federation, ahead_ms, took_ms: _ }) => {
                ahead = ahead.or(Some(ahead_ms));
                check_broker(address, &federation)
            }
            Err(failure) if answered > 0 => {
                Check::warning(BROKERS_CHECK, format!("{address}: {}", failure.reason), failure.remedy)
            }
            Err(failure) => Check::failed(BROKERS_CHECK, format!("{address}: {}", failure.reason), failure.remedy),
        });
    }
    list.extend(ahead.map(clock_check));
    answered > 0
}

fn check_broker(address: &str, federation: &v1::GetFederationResponse) -> Check {
    let (client, broker) = (env!("CARGO_PKG_VERSION"), &federation.broker_version);
    if client != broker {
        let detail = format!("{address} answers, and has version {broker}; this client has {client}");
        return Check::warning(BROKERS_CHECK, detail, "use a client of the broker's version");
    }
    if federation.time_ms >= federation.ca_intermediate_due_ms {
        let days = federation.ca_intermediate_not_after_ms.saturating_sub(federation.time_ms) / MS_PER_DAY;
        let detail =
            format!("{address} answers, and its intermediate ends in {days} days: no certificate is valid then");
        let remedy = "let a broker operator install the next one: comity-broker ca --help";
        return Check::warning(BROKERS_CHECK, detail, remedy);
    }
    Check::ok(BROKERS_CHECK, format!("{address} answers, federation {}", federation.trust_domain))
}

/// One broker's answer.
struct BrokerAnswer {
    federation: v1::GetFederationResponse,
    /// Milliseconds by which this host's clock is ahead of it.
    ahead_ms: i64,
    /// How long it took, in milliseconds. The clocks are compared to half of that.
    took_ms: u64,
}

/// The quickest of several answers: the first one also waits for the connection.
async fn ask(address: &str, tls: &ClientTls) -> Result<BrokerAnswer, Failure> {
    let endpoint = BrokerEndpoints::new([address]).map_err(|error| Failure::configuration(error.to_string()))?;
    let mut client = FederationServiceClient::new(connect(&endpoint, tls));
    let mut quickest = ask_once(&mut client).await?;
    for _ in 1..CALLS_TO_A_BROKER {
        let answer = ask_once(&mut client).await?;
        if answer.took_ms < quickest.took_ms {
            quickest = answer;
        }
    }
    Ok(quickest)
}

async fn ask_once(client: &mut FederationServiceClient<BrokerChannel>) -> Result<BrokerAnswer, Failure> {
    let clock = SystemClock::new();
    let sent = clock.unix_ms();
    let answer = tokio::time::timeout(REACH_LIMIT, client.get_federation(v1::GetFederationRequest {})).await;
    let answer = answer.map_err(|_| {
        Failure::unavailable(format!("no answer within {} s", REACH_LIMIT.as_secs()))
            .remedy("check that a broker runs there, and that firewalls let this host reach it")
    })?;
    let federation = answer?.into_inner();
    let received = clock.unix_ms();
    let middle = sent.midpoint(received);
    let ahead_ms = i64::try_from(i128::from(middle) - i128::from(federation.time_ms)).unwrap_or(i64::MAX);
    Ok(BrokerAnswer { federation, ahead_ms, took_ms: received.saturating_sub(sent) })
}

/// A linearizable read, which only a group with a leader can answer.
async fn check_leader(endpoints: &BrokerEndpoints, tls: &ClientTls) -> Check {
    let mut client = FederationServiceClient::new(connect(endpoints, tls));
    let page = Some(v1::PageRequest { size: 1, token: String::new() });
    let request = v1::ListClustersRequest { page, consistency: v1::Consistency::Linearizable.into() };
    match call(client.list_clusters(request)).await {
        // A broker asks the leader before it denies a right.
        Ok(_) | Err(Failure { exit: Exit::Permission, .. }) => {
            Check::ok(LEADER_CHECK, "the group has a leader that a majority follows")
        }
        Err(failure) => Check::failed(LEADER_CHECK, failure.reason, "run 'comity raft status'"),
    }
}

/// The caller's roles in the policy.
async fn check_rights(endpoints: &BrokerEndpoints, tls: &ClientTls, caller: &str) -> Check {
    let mut client = PolicyServiceClient::new(connect(endpoints, tls));
    let request = v1::GetPolicyRequest { consistency: v1::Consistency::Linearizable.into() };
    let bundle = match call(client.get_policy(request)).await {
        Ok(answer) => answer.bundle.unwrap_or_default(),
        Err(failure) if failure.exit == Exit::Permission => {
            let remedy = "ask a maintainer to name it under `members` of a Tenant, `operators` of an Institution, or \
                          `maintainers` of the Federation";
            return Check::warning(RIGHTS_CHECK, format!("policy names {caller} nowhere: you may do nothing"), remedy);
        }
        Err(failure) => return Check::warning(RIGHTS_CHECK, failure.reason, failure.remedy),
    };
    let files = bundle.files.into_iter().map(|file| SourceFile { path: file.path, text: file.text }).collect();
    match comity_policy::load(files) {
        Ok(bundle) => Check::ok(RIGHTS_CHECK, roles_text(&bundle.roles_of(caller))),
        Err(_) => Check::warning(
            RIGHTS_CHECK,
            "this client cannot read the policy in force",
            "compare the versions of client and broker with 'comity version'",
        ),
    }
}

fn roles_text(roles: &Roles) -> String {
    let mut parts = Vec::new();
    if roles.federation_admin {
        parts.push("maintainer of the federation".to_owned());
    }
    if roles.broker_operator {
        parts.push("broker operator".to_owned());
    }
    if roles.planner {
        parts.push("planner".to_owned());
    }
    if !roles.institutions_operated.is_empty() {
        let names: Vec<&str> = roles.institutions_operated.iter().map(String::as_str).collect();
        parts.push(format!("operator of {}", names.join(", ")));
    }
    parts.extend(roles.tenants.iter().map(|(tenant, role)| format!("{} of tenant {tenant}", role.as_str())));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_named() {
        let roles = Roles {
            federation_admin: true,
            broker_operator: true,
            planner: false,
            institutions_operated: ["ethz".to_owned()].into(),
            tenants: [("ml".to_owned(), comity_policy::TenantRole::Submitter)].into(),
        };
        assert_eq!(
            roles_text(&roles),
            "maintainer of the federation; broker operator; operator of ethz; submitter of tenant ml"
        );
    }

    #[test]
    fn a_broker_of_another_version_and_an_intermediate_that_ends_soon_are_warnings() {
        let of = |version: &str| v1::GetFederationResponse {
            trust_domain: "dev.test".to_owned(),
            broker_version: version.to_owned(),
            ca_intermediate_due_ms: 60 * MS_PER_DAY,
            ca_intermediate_not_after_ms: 90 * MS_PER_DAY,
            ..v1::GetFederationResponse::default()
        };
        assert_eq!(check_broker("b:1", &of(env!("CARGO_PKG_VERSION"))).result, Outcome::Ok);
        assert_eq!(check_broker("b:1", &of("9.9.9")).result, Outcome::Warning);
        let late = v1::GetFederationResponse { time_ms: 61 * MS_PER_DAY, ..of(env!("CARGO_PKG_VERSION")) };
        let check = check_broker("b:1", &late);
        assert_eq!(check.result, Outcome::Warning);
        assert!(check.detail.contains("ends in 29 days"), "{}", check.detail);
    }
}
