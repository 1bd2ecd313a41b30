//! Reservations: GPUs of a donor that are kept for a tenant during weekly windows.

use comity_core::command::{ApplyPolicy, CancelRequest, PlaceRequests, ReclaimLeases, ReleaseLease, RenewLease};
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain::{explain, kept_gpus, quote};
use comity_core::feasibility::{Cure, spared};
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::{Planner, Reclaimer, plan};
use comity_core::{Command, Millis, Refusal, ReplyBody, Timestamp};
use comity_policy::{Bundle, BundleSource, SourceFile};
use comity_types::{LeaseId, LeaseState, LeaseTreatment, RequestId, RequestState, TenantId};
use proptest::prelude::*;

use super::federation::{Federation, RIVALS, cluster, spec, terms};
use super::policy_changes::unforced;
use super::policy_plans::plan_of;
use super::reclaim::{GRACE, MINUTE, at, used, yielding};

pub(super) const HOUR: u64 = 60 * MINUTE;
/// 1970-01-05T00:00:00Z, the first Monday.
const MONDAY: u64 = 4 * 24 * HOUR;
/// Notice before which a preemptible lease is reclaimed: the donor's, and two minutes.
const LEAD: u64 = GRACE + 2 * MINUTE;
pub(super) const RESERVED: &str = "reserved-for-others";

pub(super) const SCHEDULES: &str = "
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {name: lessons}
spec: {timeZone: UTC, windows: [{days: [tue], from: '09:00', until: '12:00'}]}
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {name: mornings}
spec: {timeZone: UTC, windows: [{days: [mon, tue, wed, thu, fri], from: '10:00', until: '11:00'}]}
";
/// The first lesson, on Tuesday at 09:00.
pub(super) const LESSON: u64 = MONDAY + 33 * HOUR;

/// A reservation of `north`'s big devices for `rivals`.
pub(super) fn reservation(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.comity.dev/v1\nkind: Reservation\nmetadata: {{name: {name}}}\n\
         spec: {{tenant: rivals, class: big, clusters: [north], {spec}}}\n"
    )
}

/// A bundle with the offsets of its time zones.
pub(super) fn compiled(text: String) -> BundleSource {
    let files = vec![SourceFile { path: "all.yaml".into(), text }];
    Bundle::compile(&BundleSource::of_files(files)).unwrap().source().clone()
}

impl Federation {
    /// `north` has 16 big devices, and `reservations` keep some of them.
    pub(super) fn reserving(reservations: &str) -> Self {
        let mut federation = Self::with_rivals();
        federation.now = MONDAY;
        federation.reserve(reservations);
        federation
    }

    pub(super) fn reserve(&mut self, reservations: &str) {
        self.apply_text(&terms("", "").files[0].text, reservations);
    }

    fn apply_text(&mut self, base: &str, reservations: &str) {
        let source = compiled(format!("{base}---{RIVALS}{SCHEDULES}{reservations}"));
        self.ok(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
    }

    pub(super) fn renewed(&mut self, lease: LeaseId, term: u64) -> Result<(), Refusal> {
        let command = RenewLease { lease, duration: Millis(term), may_shorten: false };
        self.try_apply(Command::RenewLease(command)).reply.map(drop)
    }

    pub(super) fn is_queued(&self, request: RequestId) -> bool {
        self.state.requests[&request].state == RequestState::Queued
    }
}

/// A request of `team` for `north`'s devices that lasts some hours.
pub(super) fn firm(count: u32, hours: u64) -> RequestSpec {
    at("north", RequestSpec { duration: Millis(hours * HOUR), ..spec(count, Share::Whole, "big") })
}

/// The same for the tenant of the reservations.
pub(super) fn course(count: u32, hours: u64) -> RequestSpec {
    RequestSpec { tenant: TenantId::parse("rivals", "tenant").unwrap(), origin: cluster("east"), ..firm(count, hours) }
}

#[test]
fn others_leave_the_reserved_gpus_by_the_begin_of_the_window() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    // With its hold of two minutes, a lease of three hours that starts at 06:00 could last until 09:02.
    federation.now = LESSON - 3 * HOUR;
    let late = federation.submit(firm(5, 3));
    let beside = federation.submit(firm(4, 3));
    assert_eq!(federation.place().len(), 1);
    assert!(federation.is_queued(late) && !federation.is_queued(beside));
    let shorter = federation.submit(firm(4, 2));
    federation.place();
    assert!(!federation.is_queued(shorter));
    // Its lease may not be renewed into the window; that of the one beside the reservation may.
    let lease_of = |federation: &Federation, request| federation.state.requests[&request].lease.unwrap();
    let (short, long) = (lease_of(&federation, shorter), lease_of(&federation, beside));
    federation.run(short);
    federation.run(long);
    let refusal = federation.renewed(short, 4 * HOUR).unwrap_err();
    assert_eq!(refusal.code, Code::PolicyDenied);
    assert!(refusal.reason.contains("north keeps 12 GPUs of class big for tenant rivals"), "{refusal}");
    assert!(refusal.remedy.contains("ask for at most 2h59m"), "{refusal}");
    federation.renewed(short, 2 * HOUR).unwrap();
    federation.renewed(long, 20 * HOUR).unwrap();
    assert!(federation.needs("north").is_empty());
}

#[test]
fn the_tenant_itself_uses_what_is_reserved_and_may_go_on() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    federation.now = LESSON + MINUTE;
    let others = federation.submit(firm(5, 1));
    let lesson = federation.submit(course(12, 8));
    let more = federation.submit(course(4, 1));
    federation.place();
    // The course has what is kept, and beside it competes like everybody.
    assert!(!federation.is_queued(lesson) && federation.is_queued(others) && !federation.is_queued(more));
    let kept = &kept_gpus(&federation.state)[0];
    assert_eq!((kept.is_open, kept.used_milli, kept.held_milli, kept.short_milli), (true, 12_000, 0, 0));
    // What it gives back is kept until the window ends.
    let lease = federation.state.requests[&lesson].lease.unwrap();
    federation.run(lease);
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    federation.stop(lease);
    assert!(federation.place().is_empty());
    let kept = &kept_gpus(&federation.state)[0];
    assert_eq!((kept.is_open, kept.used_milli, kept.held_milli, kept.short_milli), (true, 4_000, 8_000, 0));
    federation.now = LESSON + 3 * HOUR;
    federation.expire_at(LESSON + 3 * HOUR);
    federation.place();
    assert!(!federation.is_queued(others));
}

#[test]
fn a_preemptible_lease_has_its_notice_before_the_window() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    federation.now = LESSON - 2 * HOUR;
    let (_, large) = federation.running(at("north", yielding(8, 0)));
    let (_, small) = federation.running(at("north", yielding(3, 0)));
    let (_, least) = federation.running(at("north", yielding(1, 0)));
    federation.expire_at(LESSON - LEAD - MINUTE);
    assert!(federation.needs("north").is_empty());
    federation.expire_at(LESSON - LEAD);
    // Four GPUs are beside the reservation: the eight go, and nobody else.
    let reason = ReclaimReason::PolicyChanged { code: RESERVED.to_owned(), treatment: LeaseTreatment::Drain };
    let proposed = federation.needs("north");
    assert_eq!(proposed.iter().map(|it| (it.lease, it.reason.clone())).collect::<Vec<_>>(), [(large, reason)]);
    // Nobody takes the place of others that stay.
    let wrong: Vec<_> =
        [small, least].map(|lease| comity_core::proposal::ProposedReclaim { lease, ..proposed[0].clone() }).to_vec();
    match federation
        .ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims: [proposed.clone(), wrong].concat() }))
        .reply
    {
        Ok(ReplyBody::Reclaimed { leases, refused, .. }) => {
            assert_eq!(leases, [large]);
            assert_eq!(refused.iter().map(|(lease, _)| *lease).collect::<Vec<_>>(), [small, least]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(spared(&federation.state), []);
    let deadline = federation.state.leases[&large].reclaim.as_ref().unwrap().deadline;
    assert!(deadline.0 <= LESSON - MINUTE, "{deadline:?}");
    // No other begins in the minutes that are left.
    let another = federation.submit(at("north", yielding(1, 0)));
    federation.place();
    assert!(federation.is_queued(another));
}

#[test]
fn a_reclaim_is_called_off_when_the_reservation_ends() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    federation.now = LESSON - 2 * HOUR;
    let (_, lease) = federation.running(at("north", yielding(8, 0)));
    federation.expire_at(LESSON - LEAD);
    let proposed = federation.needs("north");
    assert_eq!(federation.reclaim(proposed), [lease]);
    federation.reserve("");
    assert_eq!(spared(&federation.state), [lease]);
    federation.reclaim(Vec::new());
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn what_is_unused_is_released_in_time() {
    let text = reservation("course", "gpus: 12, during: lessons, releaseUnusedAfter: 30m");
    let mut federation = Federation::reserving(&text);
    federation.now = LESSON + MINUTE;
    let (_, used) = federation.running(course(4, 2));
    let others = federation.submit(firm(8, 1));
    let mut planner = Planner::default();
    assert!(planner.plan(&federation.state, 100).placements.is_empty());
    // Time alone makes the difference.
    let released = LESSON + 30 * MINUTE;
    while federation.state.next_due().unwrap().0 < released {
        federation.expire_at(federation.state.next_due().unwrap().0);
        assert!(planner.plan(&federation.state, 100).placements.is_empty());
    }
    assert_eq!(federation.state.next_due().unwrap().0, released);
    federation.expire_at(released);
    let plan = planner.plan(&federation.state, 100);
    assert_eq!(plan.placements.iter().map(|it| it.request).collect::<Vec<_>>(), [others]);
    assert_eq!(federation.state.leases[&used].state, LeaseState::Active);
}

#[test]
fn reservations_add_up_and_each_counts_only_while_it_is_open() {
    let both = reservation("course", "gpus: 8, during: lessons") + &reservation("seminar", "gpus: 6, during: mornings");
    let mut federation = Federation::reserving(&both);
    // On Monday the seminar alone.
    federation.now = MONDAY + 9 * HOUR;
    let monday = federation.submit(firm(10, 2));
    federation.place();
    assert!(!federation.is_queued(monday));
    let lease = federation.state.requests[&monday].lease.unwrap();
    federation.run(lease);
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    federation.stop(lease);
    // On Tuesday at ten both, at nine the course alone.
    federation.now = LESSON - 2 * HOUR;
    let refused = federation.submit(firm(3, 4));
    federation.place();
    assert!(federation.is_queued(refused));
    let explained = explain(&federation.state, &firm(3, 4));
    let obstacle = explained.donors.iter().find(|it| it.donor == cluster("north")).unwrap().obstacle.clone().unwrap();
    assert_eq!(obstacle.code, RESERVED);
    assert_eq!(obstacle.by.len(), 2, "{obstacle:?}");
    assert!(obstacle.by[0].starts_with("Reservation course (all.yaml:"), "{obstacle:?}");
    let until_ten = federation.submit(firm(8, 2));
    federation.place();
    assert!(!federation.is_queued(until_ten));
}

#[test]
fn explanations_and_quotes_name_the_reservation_and_the_earliest_start() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    federation.now = LESSON - 2 * HOUR;
    federation.expire_at(LESSON - 2 * HOUR);
    let asked = firm(8, 3);
    let explained = explain(&federation.state, &asked);
    let obstacle = explained.donors.iter().find(|it| it.donor == cluster("north")).unwrap().obstacle.clone().unwrap();
    assert_eq!((obstacle.code.as_str(), obstacle.cure), (RESERVED, Cure::Waiting));
    assert_eq!(
        obstacle.reason,
        "north keeps 12 GPUs of class big for tenant rivals from 1970-01-06T09:00:00Z until 1970-01-06T12:00:00Z"
    );
    assert_eq!(
        obstacle.unblock,
        "ask for at most 1h57m59s, or ask for a preemptible lease, or wait until 1970-01-06T12:00:00Z"
    );
    let end = Timestamp(LESSON + 3 * HOUR);
    assert_eq!(obstacle.until, Some(end));
    assert_eq!(quote(&federation.state, &asked).earliest, Some((end, vec![cluster("north")])));
    // A lease that ends in the window makes room, and not for others before the window ends.
    federation.running(firm(4, 3));
    federation.now = LESSON + MINUTE;
    federation.expire_at(LESSON + MINUTE);
    federation.running(course(12, 1));
    let quoted = quote(&federation.state, &asked);
    assert_eq!(quoted.earliest, Some((end, vec![cluster("north")])));
    let request = federation.submit(asked);
    let waiting = comity_core::explain::explain_waiting(&federation.state, request).unwrap();
    assert_eq!(waiting.position.unwrap().earliest, Some((end, vec![cluster("north")])));
    // The course itself need not wait for that.
    let quoted = quote(&federation.state, &course(8, 1));
    assert!(quoted.earliest.unwrap().0 < end);
}

#[test]
fn a_request_that_lasts_longer_than_the_time_between_windows_is_told_so() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    federation.expire_at(LESSON - 2 * HOUR);
    // A week without three hours lies between two lessons.
    let obstacle_of = |federation: &Federation, spec: &RequestSpec| {
        let explained = explain(&federation.state, spec);
        explained.donors.iter().find(|it| it.donor == cluster("north")).unwrap().obstacle.clone()
    };
    let obstacle = obstacle_of(&federation, &firm(8, 7 * 24 - 2)).unwrap();
    assert_eq!((obstacle.code.as_str(), obstacle.cure, obstacle.until), (RESERVED, Cure::Change, None));
    assert!(!obstacle.unblock.contains("wait"), "{}", obstacle.unblock);
    assert_eq!(obstacle_of(&federation, &firm(8, 7 * 24 - 4)).unwrap().cure, Cure::Waiting);
    assert_eq!(obstacle_of(&federation, &firm(4, 7 * 24 - 2)), None);
    assert_eq!(obstacle_of(&federation, &course(16, 7 * 24 - 2)), None);
}

#[test]
fn the_donor_that_keeps_gpus_for_a_tenant_comes_first() {
    let anywhere = RequestSpec { allow_donors: Vec::new(), ..course(4, 1) };
    // `south` has just four devices: without a reservation it wastes less.
    let mut federation = Federation::reserving("");
    federation.expire_at(LESSON + MINUTE);
    let (_, lease) = federation.running(anywhere.clone());
    assert_eq!(federation.state.leases[&lease].placement.donor, cluster("south"));
    let mut federation = Federation::reserving(&reservation("course", "gpus: 4, during: lessons"));
    federation.expire_at(LESSON + MINUTE);
    let (_, lease) = federation.running(anywhere.clone());
    assert_eq!(federation.state.leases[&lease].placement.donor, cluster("north"));
    // What is kept is used now.
    let (_, lease) = federation.running(anywhere);
    assert_eq!(federation.state.leases[&lease].placement.donor, cluster("south"));
}

#[test]
fn the_local_reserve_and_the_limit_of_the_donor_leave_room_for_what_is_reserved() {
    for terms_of_north in ["localReserveGpus: 4", "maxLentGpus: 12"] {
        let mut federation = Federation::reserving("");
        let from = "metadata: {name: north}\nspec: {";
        let base = terms(from, &format!("{from}{terms_of_north}, ")).files[0].text.clone();
        federation.apply_text(&base, &reservation("course", "gpus: 8, during: lessons"));
        federation.expire_at(LESSON + MINUTE);
        let (beside, above) = (federation.submit(firm(4, 1)), federation.submit(firm(1, 1)));
        federation.place();
        assert!(!federation.is_queued(beside) && federation.is_queued(above), "{terms_of_north}");
        let lesson = federation.submit(course(8, 1));
        federation.place();
        assert!(!federation.is_queued(lesson), "{terms_of_north}");
    }
}

#[test]
fn other_classes_and_local_work_count_as_they_are() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 12, during: lessons"));
    // Local work has six of sixteen devices: ten are left, all for the course.
    federation.offer("north", used(3, &[("n1", 8, 0), ("n2", 8, 6)]));
    federation.expire_at(LESSON + MINUTE);
    let others = federation.submit(firm(1, 1));
    let lesson = federation.submit(course(10, 1));
    federation.place();
    assert!(federation.is_queued(others) && !federation.is_queued(lesson));
}

#[test]
fn a_new_reservation_ends_no_lease_that_is_not_preemptible() {
    let mut federation = Federation::reserving("");
    federation.expire_at(LESSON - HOUR);
    let (_, granted) = federation.running(firm(8, 3));
    let (_, yields) = federation.running(at("north", yielding(2, 0)));
    // Its first window begins sooner than the notice.
    federation.expire_at(LESSON - MINUTE);
    federation.reserve(&reservation("course", "gpus: 12, during: lessons"));
    let proposed = federation.needs("north");
    assert_eq!(proposed.iter().map(|it| it.lease).collect::<Vec<_>>(), [yields]);
    // Six of twelve GPUs will be missing when the window opens: the notice of the other one is not over then.
    let kept = kept_gpus(&federation.state);
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].donor.as_str(), kept[0].tenant.as_str(), kept[0].gpu_milli), ("north", "rivals", 12_000));
    assert_eq!(kept[0].window, Some((Timestamp(LESSON), Timestamp(LESSON + 3 * HOUR))));
    assert_eq!((kept[0].is_open, kept[0].used_milli, kept[0].held_milli), (false, 0, 0));
    assert_eq!(kept[0].short_milli, 6_000);
    federation.reclaim(proposed);
    assert_eq!(federation.state.leases[&granted].state, LeaseState::Active);
    let refusal = federation.renewed(granted, 2 * HOUR).unwrap_err();
    assert!(refusal.reason.contains("keeps 12 GPUs"), "{refusal}");
}

#[test]
fn a_request_of_high_priority_preempts_beside_a_reservation() {
    let mut federation =
        Federation::reserving(&reservation("course", "gpus: 8, during: lessons").replace("rivals", "juniors"));
    let base = terms("", "").files[0].text.clone();
    let preempting = format!(
        "{base}---{}{SCHEDULES}{}",
        super::reclaim::rivals(),
        reservation("course", "gpus: 8, during: lessons").replace("rivals", "juniors")
    );
    let source = compiled(preempting);
    federation.ok(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
    federation.expire_at(LESSON + MINUTE);
    let (_, low) = federation.running(at("north", yielding(8, 0)));
    let urgent = federation.submit_as("bob", at("north", super::reclaim::urgent(4)));
    // All that is not kept is in use: one lease yields to the other, and nothing that is kept is taken.
    let plan = Planner::default().plan(&federation.state, 100);
    assert!(plan.placements.is_empty());
    assert_eq!(
        plan.reclaims.iter().map(|it| (it.lease, it.reason.clone())).collect::<Vec<_>>(),
        [(low, ReclaimReason::Preempted { by: urgent })]
    );
}

#[test]
fn a_plan_names_the_leases_that_a_new_reservation_would_end() {
    let mut federation = Federation::reserving("");
    federation.expire_at(LESSON - 50 * MINUTE);
    let (_, granted) = federation.running(firm(8, 1));
    let (_, yields) = federation.running(at("north", yielding(2, 0)));
    federation.expire_at(LESSON - MINUTE);
    let base = terms("", "").files[0].text.clone();
    let text = format!("{base}---{RIVALS}{SCHEDULES}{}", reservation("course", "gpus: 12, during: lessons"));
    let plan = plan_of(&federation.state, unforced(compiled(text))).unwrap();
    let effects: Vec<_> = plan.leases.named.iter().map(|it| (it.lease, it.treatment, it.code.as_str())).collect();
    assert_eq!(effects, [(yields, LeaseTreatment::Drain, RESERVED), (granted, LeaseTreatment::Finish, RESERVED)]);
    for effect in &plan.leases.named {
        assert!(effect.reason.contains("12 GPUs of class big for tenant rivals"), "{effect:?}");
    }
}

/// Something that somebody does.
#[derive(Clone, Debug)]
enum Step {
    Submit { of_course: bool, count: u32, minutes: u64, preemptible: bool },
    Renew { lease: u64, minutes: u64 },
    Release(u64),
    Cancel(u64),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let what = prop_oneof![
        6 => (any::<bool>(), 1..9_u32, 5..400_u64, any::<bool>()).prop_map(|(of_course, count, minutes, preemptible)| {
            Step::Submit { of_course, count, minutes, preemptible }
        }),
        3 => (0..12_u64, 5..400_u64).prop_map(|(lease, minutes)| Step::Renew { lease, minutes }),
        1 => (0..12_u64).prop_map(Step::Release),
        1 => (0..12_u64).prop_map(Step::Cancel),
    ];
    (1..45_u64, what)
}

/// Ticks of the leader's loops, in milliseconds.
const TICK: u64 = 30_000;

impl Federation {
    /// What the leader and the agents do from now until `until`.
    fn lead_until(&mut self, until: u64, reclaimer: &mut Reclaimer, check: &dyn Fn(&Self)) {
        while self.now < until {
            self.now = (self.now / TICK + 1) * TICK - 1;
            self.ok(Command::Expire(comity_core::command::Expire {}));
            let ending: Vec<LeaseId> = self
                .state
                .leases
                .iter()
                .filter(|(_, lease)| lease.state == LeaseState::Ending)
                .map(|(id, _)| *id)
                .collect();
            ending.into_iter().for_each(|lease| self.stop(lease));
            check(self);
            let due = reclaimer.due_reclaims(&self.state, Timestamp(self.now));
            if !due.is_empty() || !spared(&self.state).is_empty() {
                self.reclaim(due);
            }
            for lease in self.place_before_windows() {
                self.run(lease);
            }
        }
    }

    /// As `place`. A plan is applied a millisecond after it was made: a lease that would have ended as a window opens then
    /// ends too late, and is refused.
    fn place_before_windows(&mut self) -> Vec<LeaseId> {
        let placements = plan(&self.state, 100).placements;
        match self.ok(Command::PlaceRequests(PlaceRequests { placements })).reply {
            Ok(ReplyBody::Placed { leases, refused }) => {
                let is_late = |refusal: &Refusal| refusal.reason.contains("(reserved-for-others)");
                assert!(refused.iter().all(|(_, refusal)| is_late(refusal)), "{refused:?}");
                leases
            }
            other => panic!("{other:?}"),
        }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Submit { of_course, count, minutes, preemptible } => {
                let base = if *of_course { course(*count, 1) } else { firm(*count, 1) };
                let preemptible = if *preemptible { yielding(1, 0).preemptible } else { None };
                let spec = RequestSpec { duration: Millis(minutes * MINUTE), preemptible, ..base };
                self.submit_as(if *of_course { "bob" } else { "alice" }, spec);
            }
            Step::Renew { lease, minutes } => drop(self.renewed(LeaseId(*lease), minutes * MINUTE)),
            Step::Release(lease) => {
                drop(self.try_apply(Command::ReleaseLease(ReleaseLease { lease: LeaseId(*lease) })));
            }
            Step::Cancel(request) => {
                drop(self.try_apply(Command::CancelRequest(CancelRequest { request: RequestId(*request) })));
            }
        }
    }

    /// Devices of `north` that `team` and `rivals` have.
    fn held_at_north(&self) -> [u64; 2] {
        ["team", "rivals"].map(|tenant| {
            let held = self.state.leases.iter().filter(|(_, lease)| {
                lease.occupies() && lease.tenant.as_str() == tenant && lease.placement.donor == cluster("north")
            });
            held.map(|(_, lease)| lease.placement.milli()).sum()
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// At each moment of a window what is kept is free or used by its tenant, however many leases there are.
    #[test]
    fn in_each_window_the_reserved_gpus_are_free_or_used_by_the_tenant(steps in prop::collection::vec(step(), 1..40)) {
        let both = reservation("course", "gpus: 8, during: lessons")
            + &reservation("seminar", "gpus: 4, during: mornings, releaseUnusedAfter: 20m");
        let mut federation = Federation::reserving(&both);
        federation.now = LESSON - 6 * HOUR;
        let mut reclaimer = Reclaimer::default();
        let check = |federation: &Federation| {
            let now = federation.state.log_time.0;
            let is_open = |from: u64, until: u64| (LESSON + from * MINUTE..LESSON + until * MINUTE).contains(&now);
            let kept = if is_open(0, 180) { 8_000 } else { 0 } + if is_open(60, 80) { 4_000 } else { 0 };
            let [others, tenant] = federation.held_at_north();
            assert!(
                others + tenant.max(kept) <= 16_000,
                "{others} for others, {tenant} of {kept} for the course at {}",
                Timestamp(now).to_second()
            );
        };
        for (minutes, step) in &steps {
            federation.act(step);
            let until = federation.now + minutes * MINUTE;
            federation.lead_until(until, &mut reclaimer, &check);
        }
    }
}
