//! Limits on how often leases are reclaimed for local need and preemptions (`maxReclaims`).

use comity_core::command::ReclaimLeases;
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain;
use comity_core::feasibility::ReachedLimit;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::{self, limited_donors, limited_need};
use comity_core::{Command, Millis, ReplyBody, Timestamp, snapshot};
use comity_types::{LeaseId, LeaseState, RequestId, TenantId};

use super::federation::{Federation, cluster, spec};
use super::reclaim::{MINUTE, at, rivals, urgent, used, yielding};

const HOUR: u64 = 60 * MINUTE;

fn quota(name: &str, spec: &str) -> String {
    format!("---\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

fn of_team(leases: u32) -> String {
    quota("ours", &format!("tenant: team, maxReclaims: {{leases: {leases}, per: 1h}}"))
}

impl Federation {
    fn with_quotas(&mut self, quotas: &str) {
        self.also(&format!("{}{quotas}", rivals()));
    }

    fn limit_at(&self, donor: &str) -> Option<ReachedLimit> {
        limited_need(&self.state, &cluster(donor), self.state.log_time)
    }

    fn south_needs(&mut self, gpus: usize) -> Vec<LeaseId> {
        let generation = self.state.clusters[&cluster("south")].offer.as_ref().unwrap().generation;
        self.offer("south", used(generation + 1, &[("s1", 4, gpus)]));
        self.needs("south").into_iter().map(|reclaim| reclaim.lease).collect()
    }
}

fn by(tenant: &str, spec: RequestSpec) -> RequestSpec {
    RequestSpec { tenant: TenantId::parse(tenant, "tenant").unwrap(), ..spec }
}

fn local(lease: LeaseId) -> ProposedReclaim {
    ProposedReclaim { lease, reason: ReclaimReason::LocalNeed }
}

/// South has two leases of two GPUs each, which yield to others.
fn two_at_south() -> (Federation, LeaseId, LeaseId) {
    let mut federation = Federation::with_preemption();
    let (_, first) = federation.running(at("south", yielding(2, 0)));
    let (_, second) = federation.running(at("south", yielding(2, 0)));
    (federation, first, second)
}

#[test]
fn local_work_waits_until_the_next_reclaim_is_allowed() {
    // The younger one loses less work.
    let (mut federation, second, first) = two_at_south();
    assert_eq!(federation.south_needs(4), [first, second]);
    federation.with_quotas(&of_team(1));
    assert_eq!(federation.needs("south"), [local(first)]);
    let both = ReclaimLeases { spare: Vec::new(), reclaims: vec![local(first), local(second)] };
    let Ok(ReplyBody::Reclaimed { leases, refused, .. }) = federation.ok(Command::ReclaimLeases(both)).reply else {
        panic!("refused as a whole");
    };
    assert_eq!((leases, refused.len()), (vec![first], 1));
    assert_eq!((refused[0].0, refused[0].1.code), (second, Code::LimitReached));
    let reclaimed = federation.now;
    assert!(refused[0].1.reason.contains("reclaim-limited by maxReclaims of Quota ours"), "{refused:?}");

    assert_eq!(federation.needs("south"), []);
    let next = Some(Timestamp(reclaimed + HOUR));
    let limit = federation.limit_at("south").unwrap();
    assert_eq!((limit.setting.as_str(), limit.until), ("maxReclaims of Quota ours", next));
    assert_eq!(limited_donors(&federation.state).collect::<Vec<_>>(), [&cluster("south")]);
    assert_eq!(federation.limit_at("north"), None);
    let copy = snapshot::decode(&snapshot::encode(&federation.state).unwrap()).unwrap();
    assert_eq!(copy.reclaims, federation.state.reclaims, "it outlasts a restart");

    federation.expire_at(reclaimed + HOUR - 2);
    assert_eq!(federation.state.leases[&second].state, LeaseState::Active);
    assert_eq!(federation.needs("south"), []);
    federation.expire_at(reclaimed + HOUR);
    assert_eq!((federation.needs("south"), federation.limit_at("south")), (vec![local(second)], None));
}

#[test]
fn leases_within_the_limits_yield_instead() {
    let mut federation = Federation::with_preemption();
    let (_, one) = federation.running(at("south", yielding(1, 0)));
    let (_, other) = federation.running(at("south", yielding(1, 0)));
    let (_, large) = federation.running(at("south", by("juniors", yielding(2, 0))));
    assert_eq!(federation.south_needs(2), [large], "one lease is enough");
    let none = quota("theirs", "tenant: juniors, maxReclaims: {leases: 0, per: 1h}");
    federation.with_quotas(&none);
    assert_eq!(federation.needs("south"), [local(other), local(one)]);
    assert_eq!(federation.limit_at("south"), None, "they are enough");
    federation.with_quotas(&format!("{none}{}", of_team(1)));
    assert_eq!(federation.needs("south"), [local(other)]);
    assert!(federation.limit_at("south").unwrap().until.is_some(), "what the team has left comes sooner than never");
}

#[test]
fn a_donors_limit_counts_all_its_leases_and_spares_no_lease_that_policy_ends() {
    let mut federation = Federation::ready();
    let lends = "{institution: lenders, lends: [{classes: [big, small]}]}";
    let limited = lends.replace("lends: [", "maxReclaims: {leases: 0, per: 1h}, lends: [");
    federation.with_terms(lends, &limited);
    let (_, lease) = federation.running(at("south", spec(4, Share::Whole, "big")));
    assert_eq!(federation.south_needs(4), []);
    let limit = federation.limit_at("south").unwrap();
    assert_eq!(limit.until, None);
    assert_eq!(limit.text(), "reclaim-limited: maxReclaims of Cluster south allows none");
    federation.with_terms(lends, &limited.replace("big, ", ""));
    let reclaims = federation.needs("south");
    assert!(matches!(&reclaims[..], [ProposedReclaim { lease: ended, reason: ReclaimReason::PolicyChanged { .. } }]
        if *ended == lease));
    assert_eq!(federation.reclaim(reclaims), [lease]);
    let counted = serde_json::to_string(&federation.state.reclaims).unwrap();
    assert_eq!(counted, r#"{"donors":{},"tenants":{}}"#, "only reclaims that limits concern count");
}

#[test]
fn a_preemption_beyond_a_limit_is_not_started_and_explained() {
    let (mut federation, first, second) = two_at_south();
    for _ in 0..2 {
        let long = RequestSpec { duration: Millis::from_hours(8), ..spec(8, Share::Whole, "big") };
        federation.running(at("north", long));
    }
    assert_eq!(explain::quote(&federation.state, &urgent(4)).reclaims.unwrap().leases.len(), 2);
    federation.with_quotas(&of_team(1));
    let quote = explain::quote(&federation.state, &urgent(4));
    assert_eq!(quote.reclaims, None);
    let said =
        "leases of south would yield to it, reclaim-limited by maxReclaims of Quota ours, the next is allowed at";
    assert!(quote.explanation.summary.contains(said), "{}", quote.explanation.summary);
    let waiting = federation.submit(urgent(4));
    assert_eq!(scheduler::plan(&federation.state, 10).reclaims, []);
    let explained = explain::explain_waiting(&federation.state, waiting).unwrap().explanation;
    assert!(explained.summary.contains(said), "{}", explained.summary);

    // Apply believes no plan.
    let lost = |by: RequestId, lease| ProposedReclaim { lease, reason: ReclaimReason::Preempted { by } };
    let reclaims = vec![lost(waiting, first), lost(waiting, second)];
    let proposed = ReclaimLeases { spare: Vec::new(), reclaims };
    let Ok(ReplyBody::Reclaimed { leases, refused, .. }) = federation.ok(Command::ReclaimLeases(proposed)).reply else {
        panic!("refused as a whole");
    };
    assert_eq!(leases, [], "half of a preemption helps nobody");
    assert!(refused.iter().all(|(_, refusal)| refusal.code == Code::LimitReached), "{refused:?}");
    federation.ok(Command::CancelRequest(comity_core::command::CancelRequest { request: waiting }));

    let small = federation.submit(urgent(2));
    let reclaims = scheduler::plan(&federation.state, 10).reclaims;
    assert_eq!(reclaims.len(), 1);
    federation.reclaim(reclaims);
    let next = federation.submit(urgent(2));
    assert_eq!(scheduler::plan(&federation.state, 10).reclaims, [], "{small} had the only one");
    federation.with_quotas("");
    assert_eq!(scheduler::plan(&federation.state, 10).reclaims, [], "south makes room for one at a time");
    assert!(federation.state.requests[&next].waits());
}

#[test]
fn one_plan_does_not_exceed_a_limit_for_several_requests() {
    let mut federation = Federation::with_preemption();
    for node in 0..2 {
        let (_, lease) = federation.running(at("north", yielding(8, 0)));
        assert!(federation.state.leases.contains_key(&lease), "{node}");
    }
    federation.running(at("south", yielding(4, 0)));
    federation.with_quotas(&of_team(1));
    federation.submit(at("north", urgent(8)));
    federation.submit(at("south", urgent(4)));
    let reclaims = scheduler::plan(&federation.state, 10).reclaims;
    assert_eq!(reclaims.len(), 1, "{reclaims:?}");
    federation.with_quotas("");
    assert_eq!(scheduler::plan(&federation.state, 10).reclaims.len(), 2);
}
