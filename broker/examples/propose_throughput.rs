//! Measures a group of three brokers on the loopback: proposals a second with 1 and 64 clients at a time, and how long
//! nothing can be written after the leader died. Real disks (`TMPDIR`), real mutual TLS.
//!
//! ```sh
//! cargo run --release -p comity-broker --example propose_throughput
//! ```

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use comity_broker::group::{
    ApplyObserver, Consistency, Group, GroupConfig, GroupDeps, MemberAddress, Proposal, SnapshotMade,
};
use comity_broker::transport;
use comity_core::command::BeginTerm;
use comity_core::log::Applied;
use comity_core::{Command, State};
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::clock::SystemClock;
use comity_runtime::identity::{IdentitySource, TlsIdentity};
use comity_runtime::spiffe::{SpiffeId, TrustDomain};
use comity_runtime::tls::{ClientTls, IncomingLimits, ServerTls, incoming};
use tokio::runtime::Runtime;

const BROKERS: u64 = 3;
const MEASURED: Duration = Duration::from_secs(5);

struct Blind;

impl ApplyObserver for Blind {
    fn applied(&self, _state: &State, _applied: &Applied) {}
    fn restored(&self, _state: &State) {}
    fn snapshot_made(&self, _: &SnapshotMade) {}
}

/// A broker on a runtime of its own: to end that ends its tasks and connections at once, as the death of a process does.
struct Broker {
    runtime: Runtime,
    group: Group,
}

impl Broker {
    fn start(ca: &CertificateAuthority, id: u64, listener: TcpListener, data: &Path) -> Result<Self> {
        let runtime = Runtime::new()?;
        let me = SpiffeId::broker(ca.trust_domain().clone(), id);
        let pem = ca.new_identity(&me, &[], Duration::from_secs(3600), SystemTime::now())?;
        let source = IdentitySource::new(TlsIdentity::from_pem(&pem)?);
        let deps = GroupDeps {
            observer: Arc::new(Blind),
            clock: Arc::new(SystemClock::new()),
            tls: ClientTls::new(ca.roots().clone(), source.subscribe()),
        };
        let config = GroupConfig::new(id, data.join(id.to_string()), ca.trust_domain().clone());
        let tls = ServerTls::new(source.subscribe(), ca.roots());
        let group = runtime.block_on(Group::start(config, deps))?;
        let service = transport::service(&group);
        runtime.spawn(async move {
            let _source = source;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let connections = incoming(listener, tls, IncomingLimits::default());
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(connections).await?;
            anyhow::Ok(())
        });
        Ok(Self { runtime, group })
    }
}

fn proposal() -> Proposal {
    Proposal::of_leader(1, Command::BeginTerm(BeginTerm { broker: 1, outage: comity_core::Millis(0) }))
}

/// Proposes with `clients` at a time, and prints the rate and the median and 99th percentile of the times.
async fn measure(group: &Group, who: &str, clients: usize) -> Result<()> {
    let begun = Instant::now();
    let workers: Vec<_> = (0..clients)
        .map(|_| {
            let group = group.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while begun.elapsed() < MEASURED {
                    let before = Instant::now();
                    group.propose(proposal()).await?;
                    times.push(before.elapsed());
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await??);
    }
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    times.sort();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    println!("{who:8} {clients:3} clients: {rate:6.0} proposals/s, median {:?}, 99% within {:?}", at(50), at(99));
    Ok(())
}

fn main() -> Result<()> {
    let data = tempfile::tempdir()?;
    let ca = CertificateAuthority::create(TrustDomain::new("throughput.example")?, SystemTime::now())?;
    let mut listeners = BTreeMap::new();
    let mut members = BTreeMap::new();
    for id in 1..=BROKERS {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        members.insert(id, MemberAddress { raft: address.clone(), client: address });
        listeners.insert(id, listener);
    }
    let mut brokers = BTreeMap::new();
    for (id, listener) in listeners {
        brokers.insert(id, Broker::start(&ca, id, listener, data.path())?);
    }
    let clients = Runtime::new()?;
    clients.block_on(async {
        let first = brokers.get(&1).context("broker 1 was started")?;
        first.group.bootstrap(members).await?;
        first.group.propose(proposal()).await?;
        let leader = brokers.values().find(|broker| broker.group.leadership().borrow().is_leader());
        let follower = brokers.values().find(|broker| !broker.group.leadership().borrow().is_leader());
        for (who, broker) in [("leader", leader), ("follower", follower)] {
            let group = &broker.context("a group of three has both")?.group;
            for clients in [1, 64] {
                measure(group, who, clients).await?;
            }
        }
        let follower = &follower.context("a group of three has both")?.group;
        let begun = Instant::now();
        for _ in 0..200 {
            follower.read(Consistency::Linearizable, |state| state.revision).await?;
        }
        println!("linearizable read on a follower: {:?}", begun.elapsed() / 200);
        anyhow::Ok(())
    })?;

    let leads = |broker: &Broker| broker.group.leadership().borrow().is_leader();
    let leader = *brokers.iter().find(|(_, broker)| leads(broker)).context("somebody leads")?.0;
    if let Some(dead) = brokers.remove(&leader) {
        drop(dead.group);
        dead.runtime.shutdown_background();
    }
    let died = Instant::now();
    let survivor = brokers.values().next().context("two are left")?;
    while clients.block_on(survivor.group.propose(proposal())).is_err() {}
    println!("first write after the leader died: {:?}", died.elapsed());
    for broker in brokers.into_values() {
        broker.runtime.shutdown_background();
    }
    Ok(())
}
