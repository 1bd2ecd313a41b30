//! Format 1 of the log and of snapshots stays readable and keeps its meaning: `data/log-1.json` has every command, and
//! `data/snapshot-1.json` is the state after it.
//!
//! The test fails when an entry of the log is read or applied differently from now on. Before the first release, write
//! both files again: `COMITY_WRITE_GOLDEN=1 cargo test -p comity-core --test core formats`. After it, raise
//! `LOG_FORMAT` or `SNAPSHOT_FORMAT` instead and keep these files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use comity_core::broker_record::BrokerRole;
use comity_core::command::{AdmitBroker, ApplyPolicy, AssignBroker, RecoverGroup, ReviseOffer};
use comity_core::demand::{Isolation, Preemptible, Share};
use comity_core::inventory::{Enforcement, Sharing};
use comity_core::log::LOG_FORMAT;
use comity_core::{Command, LogEnvelope, Millis, State, snapshot};
use comity_policy::BundleSource;
use comity_types::Delivery;

use super::determinism::{Event, happen};
use super::federation::{cluster, device, node, offer, spec};

const LOG_1: &str = "log-1.json";
const SNAPSHOT_1: &str = "snapshot-1.json";

/// Commands of format 1.
const COMMANDS: [&str; 38] = [
    "apply-policy",
    "invite-cluster",
    "join-cluster",
    "record-certificate",
    "record-issuer",
    "mark-clusters",
    "advertise-offer",
    "revise-offer",
    "submit-request",
    "cancel-request",
    "place-requests",
    "release-lease",
    "renew-lease",
    "report-lease",
    "reclaim-leases",
    "checkpoint-lease",
    "offer-keys",
    "relay-envelope",
    "ack-envelope",
    "report-peering",
    "begin-term",
    "expire",
    "assign-broker",
    "admit-broker",
    "recover-group",
    "rebase-time",
    "invite-user",
    "join-user",
    "invite-broker",
    "join-broker",
    "revoke-invite",
    "evict-cluster",
    "revoke-user",
    "suspend-institution",
    "resume-institution",
    "set-policy-source",
    "remove-policy-source",
    "record-pull",
];

/// A history with every command, most of them accepted.
fn story() -> Vec<LogEnvelope> {
    let submit = |count, milli, key, window| Event::Submit { count, milli, virtual_node: false, key, window };
    let keys = |peering, side| Event::Keys { peering, side, network: true };
    let relay = |step| Event::Relay { peering: 1, lease: 1, step };
    let peering = |side, outcome| Event::Peering { peering: 1, side, outcome, epoch_off: 0 };
    let lease = |lease, side, outcome| Event::Lease { lease, side, outcome };
    let events = [
        submit(2, None, 1, 0),
        submit(3, Some(301), 2, 1),
        submit(1, None, 3, 2),
        Event::Place,
        keys(1, 0),
        keys(1, 1),
        relay(0),
        Event::Ack { peering: 1, lease: 1, step: 0 },
        relay(1),
        peering(1, 0),
        peering(0, 1),
        peering(1, 1),
        relay(2),
        lease(1, 1, 0),
        lease(1, 0, 0),
        Event::Renew(1, 1_800_000),
        lease(1, 1, 6),
        lease(1, 1, 7),
        lease(1, 1, 6),
        Event::Checkpoint(1),
        Event::Certificate,
        Event::Issuer,
        Event::Mark { which: 1, heard: false },
        Event::Mark { which: 1, heard: true },
        Event::LocalWork { which: 0, devices: 16 },
        Event::LocalWork { which: 1, devices: 4 },
        Event::Reclaim,
        Event::LocalWork { which: 0, devices: 0 },
        Event::Reclaim,
        Event::BeginTerm(30_000),
        Event::Rebase(-3_000),
        submit(1, None, 4, 0),
        Event::Cancel(4),
        Event::Release(2),
        Event::Expire,
        submit(1, None, 5, 0),
        Event::Place,
        Event::Suspend { which: 0, leases: 1 },
        Event::Resume(0),
        Event::RevokeUser { leases: 1 },
        Event::RevokeUser { leases: 0 },
        Event::Evict { which: 2, leases: 2 },
        Event::Invite(2),
        Event::Join { which: 2, another_key: false },
        Event::Offer { which: 1, gpus: 4, shared: false, virtual_node: true },
    ];
    let mut federation = happen(&events.map(|event| (event, 1_500)));
    for (role, number) in [(BrokerRole::Voter, 1), (BrokerRole::Learner, 2), (BrokerRole::Removed, 2)] {
        federation.ok(Command::AssignBroker(AssignBroker {
            broker: number,
            role,
            raft_address: format!("10.0.0.{number}:7444"),
            client_address: format!("10.0.0.{number}:7443"),
        }));
    }
    for command in super::invitations::user_and_broker_join().into_iter().chain(super::invitations::revoked()) {
        federation.ok(command);
    }
    federation.ok(Command::AdmitBroker(AdmitBroker { broker: 7 }));
    let held = federation.state.clusters[&cluster("south")].offer.as_ref().unwrap().generation;
    let mut nodes = offer(1, &[("s2", 2, device(81_559, Sharing::Exclusive))]).nodes;
    nodes.get_mut(&node("s2")).unwrap().enforces = Enforcement::ALL;
    let revision =
        ReviseOffer { cluster: cluster("south"), revises: held, generation: held + 1, nodes, gone: BTreeSet::new() };
    federation.ok(Command::ReviseOffer(revision));
    let mut isolated = spec(1, Share::Whole, "big");
    isolated.gpus.isolation = Isolation::Hardware;
    isolated.preemptible = Some(Preemptible { grace: Millis(0), checkpoint: true, same_gpu_type: true });
    (isolated.delivery, isolated.target_namespace) = (Delivery::VirtualNode, "team-a".to_owned());
    isolated.checkpoint_secret = Some("checkpoints".to_owned());
    isolated.template = Some("notebook-small".parse().unwrap());
    federation.submit(isolated);
    federation.ok(Command::RecoverGroup(RecoverGroup { broker: 1 }));
    let record = federation.state.policy.as_ref().unwrap();
    let replace = |hash: &str| {
        let source = BundleSource { commit: Some("abc".to_owned()), ..(*record.source).clone() };
        Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: Some(hash.to_owned()) })
    };
    let (replaces, replaces_none) = (replace(&record.bundle.hash), replace(""));
    federation.refused(replaces_none);
    federation.ok(replaces);
    for build in super::policy_sources::PULLED {
        let command = build(&federation.state);
        federation.ok(command);
    }
    federation.log
}

fn replay(log: &[LogEnvelope]) -> State {
    let mut state = State::default();
    for entry in log {
        state.apply(entry).unwrap();
    }
    state
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the golden files are read, and written before the first release")]
fn log_and_snapshot_of_format_1_give_the_same_state() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    if std::env::var_os("COMITY_WRITE_GOLDEN").is_some() {
        let log = story();
        let lines: Vec<String> = log.iter().map(|entry| serde_json::to_string(entry).unwrap()).collect();
        std::fs::write(data.join(LOG_1), lines.join("\n") + "\n").unwrap();
        std::fs::write(data.join(SNAPSHOT_1), snapshot::encode(&replay(&log)).unwrap()).unwrap();
    }
    let text = std::fs::read_to_string(data.join(LOG_1)).unwrap();
    let log: Vec<LogEnvelope> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(log.iter().all(|entry| entry.format == 1));
    for (line, entry) in text.lines().zip(&log) {
        assert_eq!(serde_json::to_string(entry).unwrap(), line, "an entry is written differently now");
    }

    let stored = std::fs::read(data.join(SNAPSHOT_1)).unwrap();
    assert_eq!(snapshot::encode(&snapshot::decode(&stored).unwrap()).unwrap(), stored, "read differently now");
    let replayed = snapshot::encode(&replay(&log)).unwrap();
    assert_eq!(String::from_utf8(replayed).unwrap(), String::from_utf8(stored).unwrap(), "applied differently now");
}

#[test]
fn the_golden_log_has_every_command_and_most_are_accepted() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(LOG_1)).unwrap();
    let mut state = State::default();
    let mut accepted: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let entry: LogEnvelope = serde_json::from_str(line).unwrap();
        let applied = state.apply(&entry).unwrap();
        *accepted.entry(entry.command.name()).or_default() += usize::from(applied.reply.is_ok());
    }
    assert_eq!(accepted.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from(COMMANDS));
    let never: Vec<_> = accepted.iter().filter(|(_, times)| **times == 0).collect();
    assert!(never.is_empty(), "only refused: {never:?}");
}

#[test]
fn a_snapshot_names_its_format_and_a_later_one_is_refused() {
    let bytes = snapshot::encode(&State::default()).unwrap();
    let format = format!("{{\"format\":{},", snapshot::SNAPSHOT_FORMAT);
    assert!(bytes.starts_with(format.as_bytes()));
    let next = LOG_FORMAT.max(snapshot::SNAPSHOT_FORMAT) + 1;
    let later = String::from_utf8(bytes).unwrap().replacen("1", &next.to_string(), 1);
    let error = snapshot::decode(later.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(&format!("format {next}")) && error.contains("newer release"), "{error}");
}
