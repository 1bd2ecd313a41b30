//! Runs three brokers in this process, on loopback ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use comity_broker::app::{Broker, Listeners, StartError};
use comity_broker::config::{Config, Settings};
use comity_broker::group::MemberAddress;
use comity_broker::provision::{self, AuthoritySource, Init, NewBroker};
use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::{BrokerEndpoints, IdentityDir, TrustDomain, UserName};
use tokio::net::TcpListener;

use super::home::Home;
use crate::failure::Failure;

/// Three brokers are the smallest group that survives the loss of one.
const BROKERS: u64 = 3;
/// The maintainer who applies the policy and invites clusters, as in the example policy.
pub(super) const MAINTAINER: &str = "ingrid";
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The broker group.
#[derive(Debug)]
pub(super) struct Brokers {
    running: Vec<Broker>,
    /// Addresses for clients.
    pub(super) endpoints: BrokerEndpoints,
}

/// The log holds the addresses of a kept federation, so it can have no other ports.
fn broker_failure(error: &StartError) -> Failure {
    let Some(address) = error.taken() else { return start_failure(error) };
    Failure::refused("port-in-use", format!("another process listens on {address}, which a kept broker needs"))
        .remedy("stop that process ('ss -ltnp' lists it), or start with another --state directory")
}

fn start_failure(error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("broker-failed", format!("a broker failed to start: {error}"))
}

fn data_dir(home: &Home, id: u64) -> PathBuf {
    home.dir(&format!("broker-{id}"))
}

/// Identity directory of a user.
pub(super) fn user_dir(home: &Home, user: &str) -> PathBuf {
    home.dir("users").join(user)
}

/// Issues a user's certificate, unless there is one that has not ended, and returns its directory. The CA's key is in
/// this home.
pub(super) fn issue_user(home: &Home, name: &str) -> Result<PathBuf, Failure> {
    let dir = user_dir(home, name);
    if has_ended(&dir) {
        // `issue_user` never overwrites a certificate.
        std::fs::remove_dir_all(&dir).map_err(|error| start_failure(&error))?;
    }
    if !IdentityDir::new(&dir).exists() {
        let user = UserName::new(name).map_err(|error| start_failure(&error))?;
        provision::issue_user(&data_dir(home, 1), &user, provision::USER_VALIDITY, &dir)
            .map_err(|error| start_failure(&error))?;
    }
    Ok(dir)
}

/// Whether the certificate in an identity directory has ended, so that it cannot be renewed.
pub(super) fn has_ended(dir: &Path) -> bool {
    IdentityDir::new(dir).load().is_ok_and(|(_, identity)| identity.not_after() <= SystemTime::now())
}

/// Fails with the commands that make the next intermediate if that of a kept federation has ended: brokers without one
/// issue no certificates. The root's key is in this home, but operators should see how an intermediate is replaced.
fn check_authority(home: &Home, config: &Config) -> Result<(), Failure> {
    let not_after = CertificateAuthority::load(&config.ca_dir()).map_err(|error| start_failure(&error))?.not_after();
    if not_after > SystemTime::now() {
        return Ok(());
    }
    let root = AuthoritySource::root_beside(&data_dir(home, 1));
    let (root, next) = (root.display(), home.dir("next"));
    let install =
        |id| format!("comity-broker ca install --from {} --data {}", next.display(), data_dir(home, id).display());
    let installs: Vec<String> = (1..=BROKERS).map(install).collect();
    Err(start_failure(&CaError::IntermediateEnded { not_after }).remedy(format!(
        "start with another --state directory; to keep this one, run: comity-broker ca intermediate --root {root} \
         --out {} && {}",
        next.display(),
        installs.join(" && ")
    )))
}

impl Brokers {
    /// Starts the brokers of a new federation, or of the one kept in this home.
    pub(super) async fn start(home: &Home, trust_domain: &str) -> Result<Self, Failure> {
        let first = data_dir(home, 1);
        let new = !first.join("broker.json").exists();
        let mut ports = if new { Some(create_group(home, trust_domain).await?) } else { None };
        let mut starting = Vec::new();
        for id in 1..=BROKERS {
            let mut config = Config::load(&data_dir(home, id)).map_err(|error| start_failure(&error))?;
            check_authority(home, &config)?;
            config.client_listen.set_ip(LOOPBACK.into());
            config.raft_listen.set_ip(LOOPBACK.into());
            config.admin_listen = SocketAddr::from((LOOPBACK, 0));
            let bound = ports.as_mut().and_then(|ports| ports.remove(&id));
            starting.push(async move {
                let listeners = match bound {
                    Some(listeners) => listeners,
                    // The log holds the addresses, so a kept federation needs the same ports again.
                    None => Listeners::bind(&config).await.map_err(|error| broker_failure(&error))?,
                };
                Broker::start_on(config, listeners).await.map_err(|error| broker_failure(&error))
            });
        }
        let running = futures::future::try_join_all(starting).await?;
        let addresses = running.iter().map(|broker| broker.client_addr().to_string());
        let endpoints = BrokerEndpoints::new(addresses.collect::<Vec<_>>()).map_err(|error| start_failure(&error))?;
        Ok(Self { running, endpoints })
    }

    /// Stops all brokers.
    pub(super) async fn stop(self) {
        futures::future::join_all(self.running.into_iter().map(Broker::shutdown)).await;
    }
}

/// Creates the data of a new group. Binds the ports first, because the log holds the members' addresses.
async fn create_group(home: &Home, trust_domain: &str) -> Result<BTreeMap<u64, Listeners>, Failure> {
    let (mut members, mut ports) = (BTreeMap::new(), BTreeMap::new());
    for id in 1..=BROKERS {
        let bind = || TcpListener::bind((LOOPBACK, 0));
        let (client, raft) = (
            bind().await.map_err(|error| start_failure(&error))?,
            bind().await.map_err(|error| start_failure(&error))?,
        );
        let address = |listener: &TcpListener| {
            listener.local_addr().map(|at| at.to_string()).map_err(|error| start_failure(&error))
        };
        members.insert(id, MemberAddress { raft: address(&raft)?, client: address(&client)? });
        ports.insert(id, Listeners { client, raft });
    }
    let init = Init {
        data: data_dir(home, 1),
        trust_domain: TrustDomain::new(trust_domain).map_err(|error| start_failure(&error))?,
        settings: Settings { id: 1, members, bootstrap_admins: BTreeSet::new(), hosts: BTreeSet::new() },
        admin: UserName::new(MAINTAINER).map_err(|error| start_failure(&error))?,
        admin_out: user_dir(home, MAINTAINER),
    };
    provision::init(&init).map_err(|error| start_failure(&error))?;
    for id in 2..=BROKERS {
        let new = NewBroker { id, hosts: BTreeSet::new() };
        provision::add_identity(&data_dir(home, 1), &new, &data_dir(home, id))
            .map_err(|error| start_failure(&error))?;
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use comity_runtime::ca::{PreviousRoot, RootAuthority};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    async fn kept(dir: &Path) -> Home {
        let home = Home::open(Some(dir)).expect("opened");
        drop(create_group(&home, "dev.test").await.expect("made"));
        home
    }

    #[tokio::test]
    async fn a_kept_federation_whose_intermediate_ended_says_which_commands_make_the_next_one() {
        let dir = tempfile::tempdir().expect("made");
        let home = kept(&dir.path().join("state")).await;
        let config = Config::load(&data_dir(&home, 2)).expect("loaded");
        check_authority(&home, &config).expect("it is new");
        let root = RootAuthority::load(&AuthoritySource::root_beside(&data_dir(&home, 1))).expect("loaded");
        let ended = root.intermediate(DAY, PreviousRoot::Trusted, SystemTime::now() - DAY * 2).expect("made");
        ended.replace(&config.ca_dir()).expect("replaced");
        let failure = Brokers::start(&home, "dev.test").await.expect_err("it has ended");
        assert!(failure.reason.contains("the intermediate of this broker ended at"), "{failure}");
        let next = home.dir("next");
        let root = data_dir(&home, 1).with_file_name("broker-1-root");
        let made = format!("comity-broker ca intermediate --root {} --out {}", root.display(), next.display());
        assert!(failure.remedy.contains(&made) && failure.remedy.contains("another --state directory"), "{failure}");
        let third = format!("ca install --from {} --data {}", next.display(), data_dir(&home, 3).display());
        assert!(failure.remedy.contains(&third), "{failure}");
    }

    #[tokio::test]
    async fn a_user_whose_certificate_ended_gets_another_one() {
        let dir = tempfile::tempdir().expect("made");
        let home = kept(&dir.path().join("state")).await;
        let user = UserName::new("alice").expect("valid");
        let alice = user_dir(&home, "alice");
        let second = Duration::from_secs(1);
        provision::issue_user(&data_dir(&home, 1), &user, second, &alice).expect("issued");
        tokio::time::sleep(second * 2).await;
        assert!(has_ended(&alice));
        issue_user(&home, "alice").expect("issued");
        assert!(!has_ended(&alice));
        let kept = std::fs::read(IdentityDir::new(&alice).key_file()).expect("read");
        issue_user(&home, "alice").expect("kept");
        assert_eq!(std::fs::read(IdentityDir::new(&alice).key_file()).expect("read"), kept);
    }
}
