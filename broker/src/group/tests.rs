//! Groups of one and three brokers, with real disks and mutual TLS on the loopback.

#![expect(clippy::unwrap_used, reason = "tests")]

mod lost_logs;
mod member_changes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use comity_audit::NonceKey;
use comity_core::Actor;
use comity_core::command::{ApplyPolicy, BeginTerm};
use comity_core::reply::{Applied, Idempotency, ReplyBody};
use comity_core::{Command, Millis, State};
use comity_policy::{BundleSource, SourceFile};
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::clock::SystemClock;
use comity_runtime::identity::{IdentitySource, TlsIdentity};
use comity_runtime::spiffe::{SpiffeId, TrustDomain};
use comity_runtime::tls::{ClientCertificates, IncomingLimits, ServerTls, incoming};
use comity_types::ClusterId;
use openraft::async_runtime::WatchReceiver as _;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::*;
use crate::storage::SnapshotMade;

mod disk;
mod isolation;
mod line;
mod refusing;
mod restarts;
mod wall_clocks;
pub(crate) mod warnings;

const SOON: Duration = Duration::from_secs(20);

/// Counts notifications and checks the order of revisions.
#[derive(Default)]
struct Counting {
    applied: AtomicU64,
    restored: AtomicU64,
    last: Mutex<u64>,
}

impl ApplyObserver for Counting {
    fn applied(&self, state: &State, applied: &Applied) {
        assert_eq!(state.revision, applied.revision);
        let mut last = self.last.lock().unwrap();
        assert!(applied.revision >= *last, "revision {} after {last}", applied.revision);
        *last = applied.revision;
        self.applied.fetch_add(1, Ordering::Relaxed);
    }

    fn restored(&self, state: &State) {
        *self.last.lock().unwrap() = state.revision;
        self.restored.fetch_add(1, Ordering::Relaxed);
    }
    fn snapshot_made(&self, _: &SnapshotMade) {}
}

/// A test federation with any number of brokers.
struct Federation {
    ca: CertificateAuthority,
    dir: TempDir,
    addresses: BTreeMap<u64, SocketAddr>,
    founders: Vec<u64>,
    snapshot_every: u64,
    /// How far the wall clock of each broker is off, in milliseconds; all are right where it is not set.
    clocks: BTreeMap<u64, wall_clocks::WallClock>,
}

struct TestBroker {
    id: u64,
    group: Group,
    observer: Arc<Counting>,
    server: Server,
}

/// The Raft port of a broker. Dropping it closes all connections, like the end of a process.
struct Server(Option<tokio::runtime::Runtime>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Federation {
    fn new(brokers: u64) -> Self {
        let domain = TrustDomain::new("group.test").unwrap();
        // Ports stay taken between here and the start only by luck; a broker that comes back needs the same one.
        let listeners: Vec<_> =
            (1..=brokers).map(|id| (id, std::net::TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        let addresses = listeners.iter().map(|(id, listener)| (*id, listener.local_addr().unwrap())).collect();
        let ca = CertificateAuthority::create(domain, SystemTime::now()).unwrap();
        let founders = (1..=brokers).collect();
        let clocks = (1..=brokers).map(|id| (id, wall_clocks::WallClock::default())).collect();
        Self { ca, dir: tempfile::tempdir().unwrap(), addresses, founders, snapshot_every: 10_000, clocks }
    }

    fn domain(&self) -> TrustDomain {
        self.ca.trust_domain().clone()
    }

    fn address(&self, id: u64) -> MemberAddress {
        let raft = self.addresses[&id].to_string();
        MemberAddress { client: raft.clone(), raft }
    }

    fn members(&self, ids: impl IntoIterator<Item = u64>) -> BTreeMap<u64, MemberAddress> {
        ids.into_iter().map(|id| (id, self.address(id))).collect()
    }

    fn data(&self, id: u64) -> std::path::PathBuf {
        self.dir.path().join(format!("broker-{id}"))
    }

    async fn start(&self, id: u64) -> TestBroker {
        let me = SpiffeId::broker(self.domain(), id);
        // Longer than clocks are set ahead: a certificate that has ended is another test.
        let pem = self.ca.new_identity(&me, &[], Duration::from_secs(7 * 86_400), SystemTime::now()).unwrap();
        let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
        let observer = Arc::new(Counting::default());
        let deps = GroupDeps {
            observer: observer.clone(),
            clock: Arc::new(self.clocks[&id].clone()),
            tls: ClientTls::new(self.ca.roots().clone(), source.subscribe()),
        };
        let mut config = GroupConfig::new(id, self.data(id), self.domain());
        config.snapshot_every = self.snapshot_every;
        config.members = self.members(self.founders.iter().copied());
        let group = Group::start(config, deps).await.unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = self.addresses[&id];
        let listener = runtime.spawn(async move { bind(address).await }).await.unwrap();
        let tls =
            ServerTls::with_client_certificates(source.subscribe(), self.ca.roots(), ClientCertificates::Required);
        group.hand_over_while_refusing(tls.refused_for_time());
        let service = raft_port::service(&group);
        runtime.spawn(async move {
            // The source of identities lives as long as the server.
            let _source = source;
            let incoming = incoming(listener, tls, IncomingLimits::default());
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        TestBroker { id, group, observer, server: Server(Some(runtime)) }
    }

    async fn three(&self) -> Vec<TestBroker> {
        let brokers = vec![self.start(1).await, self.start(2).await, self.start(3).await];
        assert_eq!(brokers[0].group.found().await.unwrap(), Founded::Here);
        all_vote(&brokers).await;
        brokers
    }
}

/// Runs a test of behaviour in time; each attempt has its own runtime.
fn in_time(test: impl AsyncFn()) {
    comity_testkit::timing::in_time(|| tokio::runtime::Runtime::new().unwrap().block_on(test()));
}

async fn bind(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + SOON;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl TestBroker {
    /// As its task of a leader does first.
    async fn begin_term(&self) -> Millis {
        let outage = self.group.outage().await.unwrap();
        let command = Command::BeginTerm(BeginTerm { broker: self.id, outage, nonce_key: NonceKey::default() });
        self.group.propose(Proposal::of_leader(self.id, command)).await.unwrap().reply.unwrap();
        outage
    }

    /// Ends at once, as far as a task can: no hand-over, no answers any more. What SIGKILL does is shown by the
    /// integration tests.
    async fn crash(self) {
        drop(self.server);
        self.group.inner.stop.cancel();
        self.group.inner.raft.shutdown().await.unwrap();
        self.group.inner.log.close();
    }

    async fn stop(self) {
        self.group.shutdown().await;
        drop(self.server);
    }
}

/// Waits until exactly these brokers vote.
async fn all_vote(brokers: &[TestBroker]) {
    eventually("all to vote", || async {
        // A change that is under way has two sets of voters.
        let is_settled = |broker: &TestBroker| {
            let members = broker.group.inner.raft.server_metrics().borrow_watched().membership_config.clone();
            members.voter_ids().count() == brokers.len() && members.membership().get_joint_config().len() == 1
        };
        let all = brokers.iter().all(|it| it.group.inner.eligibility.may_vote() && is_settled(it));
        all.then_some(())
    })
    .await;
}

async fn leader(brokers: &[TestBroker]) -> usize {
    eventually("a leader", || async {
        let index = brokers.iter().position(|broker| broker.group.leadership().borrow().is_leader())?;
        let id = brokers[index].id;
        let agree = |broker: &TestBroker| match *broker.group.leadership().borrow() {
            Leadership::Leader { .. } => broker.id == id,
            Leadership::Follower { leader } => leader == Some(id),
        };
        brokers.iter().all(agree).then_some(index)
    })
    .await
}

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {} s", SOON.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn add(group: &Group, id: u64, address: MemberAddress) -> Result<(), GroupError> {
    group.change_members(by_admin(MembershipChange::AddLearner { id, address })).await
}

/// As the maintainer asks.
fn by_admin(change: MembershipChange) -> RequestedChange {
    RequestedChange { actor: Actor::User("spiffe://group.test/user/admin".into()), generation: 0, change }
}

/// A command that changes the state: a bundle from commit `commit`.
fn policy(commit: u64) -> Proposal {
    let text = "apiVersion: policy.comity.dev/v1\nkind: Federation\nmetadata: {name: test}\n\
        spec: {trustDomain: group.test, maintainers: [\"spiffe://group.test/user/admin\"]}\n";
    let file = SourceFile { path: "federation.yaml".into(), text: text.into() };
    Proposal {
        actor: Actor::User("spiffe://group.test/user/admin".into()),
        generation: 0,
        command: Command::ApplyPolicy(ApplyPolicy {
            source: BundleSource {
                files: vec![file],
                commit: Some(format!("{commit:040}")),
                ..BundleSource::default()
            },
            force: false,
            expected_hash: None,
        }),
        idempotency: None,
        traceparent: String::new(),
    }
}

/// Changes the state, retrying like a client.
async fn changed(group: &Group, commit: u64) -> u64 {
    let mut proposal = policy(commit);
    let caller = "spiffe://group.test/user/admin".to_owned();
    proposal.idempotency = Some(Idempotency { caller, key: commit.to_string(), body_sha256: "b".into() });
    let applied = eventually("a change", || async {
        match group.propose(proposal.clone()).await {
            Err(error) if error.may_be_repeated() => None,
            done => Some(done.unwrap()),
        }
    })
    .await;
    assert_eq!(applied.reply, Ok(ReplyBody::Policy { changed: true }));
    applied.revision
}

async fn read_revision(group: &Group, consistency: Consistency) -> u64 {
    eventually("a read", || async {
        match group.read(consistency, |state| state.revision).await {
            Err(Unavailable::NoLeader { .. } | Unavailable::ReadTimeout { .. }) => None,
            done => Some(done.unwrap()),
        }
    })
    .await
}

/// Waits until all brokers have applied the same index, and checks that their states are equal.
async fn same_everywhere(brokers: &[TestBroker]) -> (u64, String) {
    eventually("the same state everywhere", || async {
        let mut all = Vec::new();
        for broker in brokers {
            let status = broker.group.status().await;
            all.push((status.applied_index, status.revision, status.state_sha256));
        }
        let (first, rest) = all.split_first()?;
        if rest.iter().any(|other| other.0 != first.0) {
            return None;
        }
        assert!(rest.iter().all(|other| other == first), "equal logs, different states: {all:?}");
        Some((first.1, first.2.clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_forward_and_read_what_was_acknowledged() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    let leader = leader(&brokers).await;
    for round in 0..10 {
        let writer = &brokers[(leader + 1 + round) % 3].group;
        let reader = &brokers[(leader + 2 + round) % 3].group;
        let revision = changed(writer, round as u64 + 1).await;
        assert_eq!(read_revision(reader, Consistency::Linearizable).await, revision);
    }
    same_everywhere(&brokers).await;
    let follower = &brokers[(leader + 1) % 3].group;
    let status = follower.status().await;
    assert_eq!((status.role, status.leader), (Role::Follower, Some(brokers[leader].id)));
    assert_eq!(status.members.iter().filter(|member| member.voter).count(), 3);
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_voter_gets_a_snapshot_where_the_log_is_gone() {
    let mut federation = Federation::new(3);
    federation.snapshot_every = 10;
    federation.founders = vec![1];
    let mut brokers = vec![federation.start(1).await];
    brokers[0].group.found().await.unwrap();
    for commit in 1..=60 {
        changed(&brokers[0].group, commit).await;
    }
    eventually("the log's beginning to go", || async {
        brokers[0].group.inner.raft.metrics().borrow_watched().purged.map(|_| ())
    })
    .await;
    for id in [2, 3] {
        let broker = federation.start(id).await;
        // From a follower, where there is one.
        let through = &brokers[brokers.len() - 1].group;
        add(through, id, federation.address(id)).await.unwrap();
        through.change_members(by_admin(MembershipChange::Promote { id })).await.unwrap();
        assert!(broker.observer.restored.load(Ordering::Relaxed) >= 2, "broker {id} got no snapshot");
        brokers.push(broker);
    }
    assert_eq!(same_everywhere(&brokers).await.0, 60);
    // Adding once more changes nothing; adding another address under the same number is refused.
    add(&brokers[0].group, 3, federation.address(3)).await.unwrap();
    let error = add(&brokers[0].group, 3, federation.address(2)).await.unwrap_err();
    assert!(matches!(error, GroupError::Members(_)), "{error}");

    // All three vote: the group goes on without the first.
    brokers.remove(0).crash().await;
    assert_eq!(changed(&brokers[0].group, 61).await, 61);
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_proposals_share_fsyncs_and_each_is_answered() {
    let federation = Federation::new(1);
    let broker = federation.start(1).await;
    broker.group.found().await.unwrap();
    leader(std::slice::from_ref(&broker)).await;
    let before = broker.group.log_syncs();
    let proposals = (0..400).map(|_| {
        let group = broker.group.clone();
        tokio::spawn(async move {
            group
                .propose(Proposal::of_leader(
                    1,
                    Command::BeginTerm(BeginTerm { broker: 1, outage: Millis(0), nonce_key: NonceKey::default() }),
                ))
                .await
                .unwrap()
        })
    });
    for proposal in proposals.collect::<Vec<_>>() {
        assert_eq!(proposal.await.unwrap().reply, Ok(ReplyBody::Done));
    }
    let flushes = broker.group.log_syncs() - before;
    assert!(flushes < 100, "{flushes} fsyncs for 400 proposals");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_gets_the_first_answer() {
    let federation = Federation::new(1);
    let broker = federation.start(1).await;
    broker.group.found().await.unwrap();
    let mut proposal = policy(1);
    let caller = "spiffe://group.test/user/admin".to_owned();
    proposal.idempotency = Some(Idempotency { caller, key: "k".into(), body_sha256: "b".into() });
    let first = broker.group.propose(proposal.clone()).await.unwrap();
    let again = broker.group.propose(proposal).await.unwrap();
    assert_eq!((again.reply, again.revision), (first.reply, 1));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_learns_whom_followers_heard() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    let leader = leader(&brokers).await;
    for (index, broker) in brokers.iter().enumerate() {
        broker.group.heard(&ClusterId::parse(&format!("c{index}"), "cluster").unwrap());
    }
    eventually("all three clusters", || async { (brokers[leader].group.last_heard().len() == 3).then_some(()) }).await;
    assert!(brokers[(leader + 1) % 3].group.last_heard().is_empty());
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_members_are_refused_with_a_reason() {
    let mut federation = Federation::new(3);
    for (founders, reason) in [(vec![2], "broker 1 is not among them"), (vec![1, 2], "odd number")] {
        federation.founders = founders;
        let broker = federation.start(1).await;
        let error = broker.group.found().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        broker.stop().await;
    }
    federation.founders = vec![1];
    let broker = federation.start(1).await;
    broker.group.found().await.unwrap();
    leader(std::slice::from_ref(&broker)).await;
    let nowhere = MemberAddress { raft: "nowhere".into(), client: "a:1".into() };
    for (id, address, reason) in [(2, nowhere, "nowhere"), (2, federation.address(2), "start it first")] {
        let error = add(&broker.group, id, address).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_starts_only_on_its_own_data() {
    let federation = Federation::new(2);
    federation.start(1).await.stop().await;
    assert!(Path::new(&federation.data(1)).join("format").exists());
    std::fs::rename(federation.data(1), federation.data(2)).unwrap();
    let pem = federation
        .ca
        .new_identity(&SpiffeId::broker(federation.domain(), 2), &[], Duration::from_secs(60), SystemTime::now())
        .unwrap();
    let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
    let deps = GroupDeps {
        observer: Arc::new(Counting::default()),
        clock: Arc::new(SystemClock::new()),
        tls: ClientTls::new(federation.ca.roots().clone(), source.subscribe()),
    };
    let config = GroupConfig::new(2, federation.data(2), federation.domain());
    let error = Group::start(config, deps).await.unwrap_err().to_string();
    assert!(error.contains("belongs to broker 1"), "{error}");
}
