//! What one tenant, one institution and one cluster may take of what all share: the queue, invitations, memory.

use std::collections::BTreeSet;

use comity_core::command::{AdvertiseOffer, ApplyPolicy, CancelRequest, InviteCluster, ReviseOffer, SubmitRequest};
use comity_core::demand::{RequestSpec, Share};
use comity_core::inventory::{Device, Sharing};
use comity_core::limits::{
    MAX_DEVICES_PER_NODE, MAX_INVITES_PER_INSTITUTION, MAX_INVITES_PER_INVITER, MAX_OFFER_BYTES,
};
use comity_core::refusal::Code;
use comity_core::{Command, Millis};
use comity_policy::SourceFile;

use super::federation::{Federation, RIVALS, cluster, device, node, offer, spec, terms};
use super::invitations::hash;
use super::inviters::apply_as;

/// A request of a tenant from its cluster.
fn of(tenant: &str, origin: &str) -> RequestSpec {
    let whole = spec(1, Share::Whole, "big");
    RequestSpec { tenant: tenant.parse().unwrap(), origin: cluster(origin), ..whole }
}

fn submit(spec: RequestSpec) -> Command {
    Command::SubmitRequest(SubmitRequest { spec, submitted_by: "spiffe://test.example/user/alice".into() })
}

#[test]
fn tenant_fills_global_queue() {
    let mut federation = Federation::with_rivals();
    let limits = "  limits: {maxQueuedRequests: 20, maxQueuedRequestsPerTenant: 3}\n  defaults:";
    let mut source = terms("  defaults:", limits);
    source.files.push(SourceFile { path: "more.yaml".into(), text: RIVALS.into() });
    federation.ok(Command::ApplyPolicy(ApplyPolicy { source, force: true, expected_hash: None }));

    let first = federation.submit(of("team", "west"));
    for _ in 1..3 {
        federation.submit(of("team", "west"));
    }
    let refusal = federation.refused(submit(of("team", "west")));
    assert_eq!((refusal.code, refusal.reason.as_str()), (Code::LimitReached, "3 requests of tenant team wait already"));
    // Both tenants of the institution share a fifth of the federation's queue.
    federation.submit(of("juniors", "west"));
    let refusal = federation.refused(submit(of("juniors", "west")));
    assert_eq!(refusal.reason, "4 requests of institution western wait already");
    assert_eq!(refusal.code, Code::LimitReached);

    for _ in 0..3 {
        federation.submit(of("rivals", "east"));
    }
    federation.ok(Command::CancelRequest(CancelRequest { request: first }));
    federation.submit(of("juniors", "west"));
}

#[test]
fn the_operators_of_one_institution_cannot_use_up_all_invitations() {
    let mut federation = Federation::with_policy();
    let operators: Vec<String> = (0..3).map(|number| format!("spiffe://test.example/user/op-{number}")).collect();
    let to = format!("homeRegion: eu, operators: {operators:?}, clusters: [west]");
    let source = terms("homeRegion: eu, clusters: [west]", &to);
    federation.ok(Command::ApplyPolicy(ApplyPolicy { source, force: true, expected_hash: None }));
    let invite = |name: &str, secret: String| {
        let secret_sha256 = hash(&secret);
        let ttl = Millis::from_hours(1);
        Command::InviteCluster(InviteCluster { cluster: cluster(name), secret_sha256, ttl, replace: false })
    };
    for number in 0..MAX_INVITES_PER_INSTITUTION {
        let operator = &operators[number / MAX_INVITES_PER_INVITER];
        apply_as(&mut federation, operator, invite("west", number.to_string())).unwrap();
    }
    let refusal = apply_as(&mut federation, &operators[2], invite("west", "one more".into())).unwrap_err();
    assert_eq!(refusal.code, Code::LimitReached);
    assert_eq!(refusal.reason, "the clusters of western have 128 open invitations together");
    apply_as(&mut federation, "spiffe://test.example/user/admin", invite("south", "another".into())).unwrap();
}

/// A device with the longest names.
fn wordy() -> Device {
    Device {
        product_name: "p".repeat(128),
        architecture: "a".repeat(128),
        cuda_compute_capability: "c".repeat(128),
        driver_version: "d".repeat(128),
        resource_name: format!("{}.r/{}", "r".repeat(187), "r".repeat(63)),
        ..device(81_559, Sharing::Exclusive)
    }
}

#[test]
fn an_offer_grows_by_revisions_to_the_same_bound_as_at_once() {
    let mut federation = Federation::ready();
    let largest = |name: &str| (name.to_owned(), MAX_DEVICES_PER_NODE, wordy());
    let names = |from: usize, count: usize| (from..from + count).map(|number| format!("big-{number}"));
    let nodes = |generation: u64, from: usize, count: usize| {
        let nodes: Vec<(String, usize, Device)> = names(from, count).map(|name| largest(&name)).collect();
        let nodes: Vec<(&str, usize, Device)> =
            nodes.iter().map(|(name, devices, like)| (name.as_str(), *devices, like.clone())).collect();
        offer(generation, &nodes)
    };
    // A node of 128 devices with these names counts 106,176 bytes.
    let whole = MAX_OFFER_BYTES / 106_176;
    let at_once = AdvertiseOffer { cluster: cluster("south"), offer: nodes(2, 0, whole + 1) };
    let refusal = federation.refused(Command::AdvertiseOffer(at_once));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::LimitReached, "offer.nodes"), "{refusal}");

    let start = whole - 10;
    federation.offer("south", nodes(2, 0, start));
    let grown = |revises: u64, from: usize, count: usize| {
        Command::ReviseOffer(ReviseOffer {
            cluster: cluster("south"),
            revises,
            generation: revises + 1,
            nodes: nodes(revises + 1, from, count).nodes,
            gone: BTreeSet::new(),
        })
    };
    federation.ok(grown(2, start, 10));
    let refusal = federation.refused(grown(3, whole, 1));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::LimitReached, "offer.nodes"), "{refusal}");
    // A changed node counts once, and one that is gone no more.
    federation.ok(grown(3, 0, 1));
    let Command::ReviseOffer(swap) = grown(4, whole, 1) else { unreachable!() };
    federation.ok(Command::ReviseOffer(ReviseOffer { gone: BTreeSet::from([node("big-0")]), ..swap }));
}
