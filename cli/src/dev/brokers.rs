//! Runs three brokers in this process, on loopback ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use comity_broker::app::{Broker, Listeners, StartError};
use comity_broker::config::{Config, Settings};
use comity_broker::group::MemberAddress;
use comity_broker::provision::{self, Init, NewBroker};
use comity_runtime::{BrokerEndpoints, IdentityDir, TrustDomain, UserName};
use tokio::net::TcpListener;

use super::home::Home;
use crate::failure::Failure;

/// Three brokers are the smallest group that survives the loss of one.
const BROKERS: u64 = 3;
/// The maintainer who applies the policy and invites clusters, as in the example policy.
const MAINTAINER: &str = "ingrid";
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

/// Identity directory of the maintainer.
pub(super) fn maintainer_dir(home: &Home) -> PathBuf {
    user_dir(home, MAINTAINER)
}

/// Issues a user's certificate unless it exists, and returns its directory. The CA's key is in this home.
pub(super) fn issue_user(home: &Home, name: &str) -> Result<PathBuf, Failure> {
    let dir = user_dir(home, name);
    if !IdentityDir::new(&dir).exists() {
        let user = UserName::new(name).map_err(|error| start_failure(&error))?;
        provision::issue_user(&data_dir(home, 1), &user, provision::USER_VALIDITY, &dir)
            .map_err(|error| start_failure(&error))?;
    }
    Ok(dir)
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
        admin_out: maintainer_dir(home),
    };
    provision::init(&init).map_err(|error| start_failure(&error))?;
    for id in 2..=BROKERS {
        let new = NewBroker { id, hosts: BTreeSet::new() };
        provision::add_identity(&data_dir(home, 1), &new, &data_dir(home, id))
            .map_err(|error| start_failure(&error))?;
    }
    Ok(ports)
}
