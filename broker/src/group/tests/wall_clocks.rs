//! Wall clocks that jump, on brokers with real disks and connections.

use std::sync::atomic::AtomicI64;

use comity_core::Timestamp;
use comity_core::command::RebaseTime;
use comity_proto::raft::v1::ExchangeClocksRequest;
use comity_proto::raft::v1::raft_transport_client::RaftTransportClient;
use comity_runtime::clock::Sleep;
use comity_runtime::tls::{BrokerEndpoints, ChannelOptions, PeerInfo, connect_with};

use super::*;
use crate::api::authorize::Rpc;
use crate::api::caller_life::CallerLife;

const HOURS_2: i64 = 7_200_000;
const HOURS_25: i64 = 90_000_000;
/// Less than the validity of the certificates.
const DAYS_3: i64 = 3 * 86_400_000;
const YEARS_10: i64 = 315_360_000_000;
/// Tolerance for network and load.
const SLACK: u64 = 400;

/// The machine's clock with an adjustable wall clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct WallClock {
    system: SystemClock,
    off_ms: Arc<AtomicI64>,
}

impl WallClock {
    fn set(&self, off_ms: i64) {
        self.off_ms.store(off_ms, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn unix_ms(&self) -> u64 {
        self.system.unix_ms().saturating_add_signed(self.off_ms.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.system.sleep(duration)
    }
}

/// True time.
fn truth() -> u64 {
    SystemClock::new().unix_ms()
}

/// Log time in the state after one more entry.
async fn logged(broker: &TestBroker, commit: u64) -> u64 {
    changed(&broker.group, commit).await;
    broker.group.read(Consistency::Linearizable, |state| state.log_time.0).await.unwrap()
}

/// Waits until another broker than `was` leads.
async fn another_leads(brokers: &[TestBroker], was: usize) -> usize {
    eventually("another leader", || async {
        let index = leader(brokers).await;
        (index != was).then_some(index)
    })
    .await
}

async fn offset_of(broker: &TestBroker, wanted: i64) {
    eventually("the offset", || async {
        let offset = broker.group.clocks().clock_offset_ms?;
        (offset.abs_diff(wanted) <= SLACK).then_some(())
    })
    .await;
}

/// Checks that an entry is stamped with the time it is stored at, but for `off_ms`.
async fn logs_time(broker: &TestBroker, commit: u64, off_ms: i64, what: &str) {
    let earliest = truth().saturating_add_signed(off_ms);
    let log_time = logged(broker, commit).await;
    let latest = truth().saturating_add_signed(off_ms);
    assert!(log_time + SLACK >= earliest, "{what}: log time is {} ms behind", earliest - log_time);
    assert!(log_time <= latest + SLACK, "{what}: log time is {} ms ahead", log_time - latest);
}

#[test]
fn a_leader_whose_wall_clock_jumps_hands_over_and_log_time_stays() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let mut was = leader(&brokers).await;
        let mut commit = 1;
        logs_time(&brokers[was], commit, 0, "before").await;
        for jump in [HOURS_2, -HOURS_2, HOURS_25] {
            let clock = &federation.clocks[&brokers[was].id];
            clock.set(jump);
            let now = another_leads(&brokers, was).await;
            commit += 1;
            logs_time(&brokers[was], commit, 0, "through the broker whose clock is wrong").await;
            offset_of(&brokers[was], jump).await;
            assert!(!brokers[was].group.inner.elections.stands(), "it knows of a leader");
            let status = brokers[was].group.status().await;
            assert!(status.clocks.clock_offset_ms.unwrap().abs_diff(jump) <= SLACK);
            assert!(status.clocks.log_time.0.abs_diff(truth()) <= 1_000, "{:?}", status.clocks);
            assert!(brokers[now].group.clocks().clock_offset_ms.unwrap().unsigned_abs() <= SLACK);
            // Nobody can send leadership back there, for it would be handed on at once.
            let back = MembershipChange::TransferLeader { to: Some(brokers[was].id) };
            let refused = eventually("the transfer to be refused for the clock", || async {
                brokers[now].group.change_members(by_admin(back.clone())).await.err().map(|error| error.to_string())
            });
            assert!(refused.await.contains("off the majority's"));

            clock.set(0);
            offset_of(&brokers[was], 0).await;
            let stands = || async { brokers[was].group.inner.elections.stands().then_some(()) };
            eventually("it may lead again", stands).await;
            was = now;
        }
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn leader_clock_jumps_ten_years() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let was = leader(&brokers).await;
        logged(&brokers[was], 1).await;
        // And those of the others with it, so that no majority says otherwise.
        for id in 1..=3 {
            federation.clocks[&id].set(YEARS_10);
        }
        // Until every broker has compared log time with the changed clocks twice.
        let mut commit = 1;
        for _ in 0..2 {
            let all_see_it = || {
                let mut offsets = brokers.iter().map(|broker| broker.group.clocks().log_time_offset_ms);
                offsets.all(|offset| offset.is_some_and(|offset| offset < -YEARS_10 / 2))
            };
            while !all_see_it() {
                commit += 1;
                logs_time(&brokers[was], commit, 0, "meanwhile").await;
            }
            // Longer than the interval between two comparisons.
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        for id in 1..=3 {
            federation.clocks[&id].set(0);
        }
        logs_time(&brokers[was], commit + 1, 0, "afterwards").await;
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn the_last_broker_that_may_lead_leads_though_its_clock_is_wrong() {
    in_time(async || {
        let federation = Federation::new(1);
        let broker = federation.start(1).await;
        broker.group.found().await.unwrap();
        leader(std::slice::from_ref(&broker)).await;
        let before = logged(&broker, 1).await;
        federation.clocks[&1].set(YEARS_10);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = logged(&broker, 2).await;
        assert!(after - before <= 1_500 + SLACK, "{} ms", after - before);
        assert!(broker.group.leadership().borrow().is_leader());
        broker.stop().await;
    });
}

#[test]
fn a_change_of_the_leader_is_no_outage_however_long_nothing_was_logged() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        let was = leader(&brokers).await;
        brokers[was].begin_term().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let before = truth();
        brokers.remove(was).crash().await;
        let now = leader(&brokers).await;
        let outage = brokers[now].begin_term().await;
        let took = truth() - before;
        assert!(outage.0 <= took + 1_000, "{} ms, {took} ms after the leader died", outage.0);
        logs_time(&brokers[now], 1, 0, "after the change").await;
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn when_all_come_back_the_outage_and_log_time_are_those_of_the_monotonic_clock() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let was = leader(&brokers).await;
        brokers[was].begin_term().await;
        // So that each has written what it knows.
        tokio::time::sleep(Duration::from_secs(3)).await;
        logged(&brokers[was], 1).await;
        let began = truth();
        for broker in brokers {
            broker.crash().await;
        }
        for clock in federation.clocks.values() {
            clock.set(-HOURS_25);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
        let now = leader(&brokers).await;
        let outage = brokers[now].begin_term().await;
        let took = truth() - began;
        assert!(outage.0 + SLACK >= 3_000 && outage.0 <= took + 2_000, "{} ms of {took} ms", outage.0);
        // Twenty-five hours of difference are slewed away by a hundredth of the time that passes.
        let off = truth().abs_diff(logged(&brokers[now], 2).await);
        assert!(off <= took / 100 + SLACK, "{off} ms off");
        for broker in brokers {
            broker.stop().await;
        }
    });
}

/// While log time is three days ahead: who has a certificate of one day may put it right, and do nothing else.
async fn repair_is_open_to_certificates_that_are_good(group: &Group) {
    let now = SystemTime::now();
    for (ends, is_good) in [(now + Duration::from_secs(86_400), true), (now - Duration::from_secs(60), false)] {
        let peer = || PeerInfo {
            spiffe: Some(SpiffeId::broker(TrustDomain::new("group.test").unwrap(), 1)),
            cert_not_after: Some(ends),
            ..PeerInfo::anonymous("127.0.0.1:1".parse().unwrap())
        };
        for (rpc, is_open) in [(Rpc::RebaseTime, is_good), (Rpc::GetRaftStatus, is_good), (Rpc::GetPolicy, false)] {
            let begun = CallerLife::begin(Some(peer()), rpc, group).await;
            assert_eq!(begun.is_ok(), is_open, "{rpc:?} with a certificate that ends at {ends:?}");
        }
    }
}

#[test]
fn log_time_that_was_founded_on_wrong_clocks_is_set_right_by_one_command() {
    in_time(async || {
        let federation = Federation::new(3);
        for clock in federation.clocks.values() {
            clock.set(DAYS_3);
        }
        let brokers = federation.three().await;
        let first = leader(&brokers).await;
        logs_time(&brokers[first], 1, DAYS_3, "founded three days ahead").await;
        for clock in federation.clocks.values() {
            clock.set(0);
        }
        let far =
            || async { Some(()).filter(|()| brokers[0].group.clocks().log_time_offset_ms > Some(DAYS_3 - 60_000)) };
        eventually("the offset of log time", far).await;
        repair_is_open_to_certificates_that_are_good(&brokers[0].group).await;
        let rebase = brokers[0].group.rebase().unwrap();
        assert!(rebase.by_ms.abs_diff(-DAYS_3) <= SLACK, "{rebase:?}");
        let proposal = Proposal::of_leader(1, Command::RebaseTime(rebase.command.clone()));
        brokers[0].group.propose(proposal.clone()).await.unwrap().reply.unwrap();
        logs_time(&brokers[first], 2, 0, "re-based").await;
        for broker in &brokers {
            eventually("everybody to know", || async {
                (broker.group.log_now().0.abs_diff(truth()) <= SLACK).then_some(())
            })
            .await;
        }
        assert!(brokers[0].group.propose(proposal).await.unwrap().reply.is_err(), "it counts once");

        // A new leader goes on from there, and so does a restart of all.
        for broker in brokers {
            broker.stop().await;
        }
        let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
        let next = leader(&brokers).await;
        logs_time(&brokers[next], 3, 0, "after a restart").await;
        let again = RebaseTime { from_shift_ms: rebase.by_ms, by_ms: 60_000 };
        brokers[next].group.propose(Proposal::of_leader(1, Command::RebaseTime(again))).await.unwrap().reply.unwrap();
        logs_time(&brokers[next], 4, 60_000, "forwards, too").await;
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_broker_asks_for_clocks_in_its_own_name_only() {
    in_time(async || {
        let mut federation = Federation::new(2);
        federation.founders = vec![1];
        let broker = federation.start(1).await;
        broker.group.found().await.unwrap();
        let me = SpiffeId::broker(federation.domain(), 2);
        let pem = federation.ca.new_identity(&me, &[], Duration::from_secs(60), SystemTime::now()).unwrap();
        let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
        let tls = ClientTls::new(federation.ca.roots().clone(), source.subscribe());
        let endpoints = BrokerEndpoints::new([federation.addresses[&1].to_string()]).unwrap();
        let expected = SpiffeId::broker(federation.domain(), 1);
        let channel = connect_with(&endpoints, &tls.expecting(expected), ChannelOptions::default());
        let mut client = RaftTransportClient::new(channel);
        let eligibility = broker.group.inner.eligibility.clone();
        let asks = |broker: u64| {
            let mut request = tonic::Request::new(ExchangeClocksRequest { broker });
            let metadata = request.metadata_mut();
            metadata.insert("comity-to", eligibility.incarnation().as_str().parse().unwrap());
            metadata.insert("comity-group", eligibility.group().unwrap().as_str().parse().unwrap());
            request
        };
        let before = truth();
        let reading = client.exchange_clocks(asks(2)).await.unwrap().into_inner();
        assert_eq!(reading.broker, 1);
        assert!(Timestamp(reading.wall_ms).since(Timestamp(before)).0 <= 5_000);
        let refused = client.exchange_clocks(asks(3)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        broker.stop().await;
    });
}

#[test]
fn a_broker_that_keeps_a_log_time_far_from_its_clock_warns_when_it_starts() {
    // No other test uses this time, so its date finds the warnings of this test.
    const AHEAD: i64 = DAYS_3 + HOURS_25 + HOURS_25;
    in_time(async || {
        warnings::keep();
        let federation = Federation::new(1);
        federation.clocks[&1].set(AHEAD);
        let sole = federation.start(1).await;
        assert_eq!(sole.group.found().await.unwrap(), Founded::Here);
        logs_time(&sole, 1, AHEAD, "founded days ahead").await;
        let date = |at_ms: u64| date_and_time(at_ms)[..10].to_owned();
        let far = date(truth().saturating_add_signed(AHEAD));
        let warned = || warnings::with("is far from its clock", &far);
        let before = warned().len();
        // Its clock file is written when it stops.
        sole.stop().await;
        let sole = federation.start(1).await;
        logs_time(&sole, 2, AHEAD, "with the same clock").await;
        assert_eq!(warned().len(), before, "log time and clock agree");
        sole.stop().await;
        federation.clocks[&1].set(0);
        let sole = federation.start(1).await;
        eventually("the warning", || async { (warned().len() > before).then_some(()) }).await;
        let said = warned().pop().unwrap();
        assert!(said.contains("comity raft rebase-time") && said.contains("group/clock"), "{said}");
        sole.stop().await;
    });
}
