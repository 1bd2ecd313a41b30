//! Quotas of GPU-hours: what leases use and book, per calendar period.

use std::collections::BTreeMap;

use comity_audit::NonceKey;
use comity_core::command::{BeginTerm, Expire, LeaseOutcome, RebaseTime, ReleaseLease, RenewLease};
use comity_core::demand::{RequestSpec, Share};
use comity_core::lease::Lease;
use comity_core::refusal::Code;
use comity_core::{Command, Millis, Refusal, ReplyBody, State, Timestamp, invariants, scheduler, snapshot};
use comity_policy::{Bundle, BundleSource, LimitKey, SourceFile, show_gpu_hours};
use comity_types::{LeaseId, LeaseState, RequestState};
use jiff::Timestamp as Instant;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::boxes::obstacle;
use super::determinism::{Event, event, happen_in};
use super::federation::{Federation, spec, terms};
use super::policy_plans::plan_of;
use super::reclaim::{MINUTE, used, yielding};

const HOUR: u64 = 60 * MINUTE;
const GPU_HOUR: u128 = 1_000 * 3_600_000;
/// 2027-01-13T12:00:00+01:00, a Wednesday.
const NOON: u64 = 1_799_838_000_000;
/// The next midnight in Berlin.
const MIDNIGHT: u64 = NOON + 12 * HOUR;

fn policy(quotas: &str) -> BundleSource {
    let mut source = terms("---", "---");
    source.files.push(SourceFile { path: "quotas.yaml".into(), text: quotas.into() });
    Bundle::compile(&source).unwrap().source().clone()
}

fn daily(limit: &str) -> String {
    format!(
        "apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {{name: daily}}
spec:
  tenant: team
  gpuHours: {{limit: {limit}, per: day, timeZone: Europe/Berlin}}
"
    )
}

impl Federation {
    /// The test federation at noon, with these quotas.
    fn limited(quotas: &str) -> Self {
        let mut federation = Self::ready();
        federation.now = NOON - 1;
        federation.limit_hours(quotas);
        federation
    }

    fn limit_hours(&mut self, quotas: &str) {
        let command = super::policy_changes::unforced(policy(quotas));
        self.ok(Command::ApplyPolicy(command));
    }

    fn renew_for(&mut self, lease: LeaseId, term: u64) -> Result<(), Refusal> {
        let command = RenewLease { lease, duration: Millis(term), may_shorten: true };
        self.try_apply(Command::RenewLease(command)).reply.map(drop)
    }

    /// GPU-hours that are used or booked in the day around a time.
    fn booked(&self, at: u64) -> String {
        let bundle = &self.state.policy.as_ref().unwrap().bundle;
        let key = LimitKey { quota: "daily", user: "" };
        let (_, span) = bundle.gpu_time_limit(key, at).unwrap();
        show_gpu_hours(self.state.gpu_time_booked().get(key, span.start_ms))
    }
}

fn release(federation: &mut Federation, lease: LeaseId) {
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
}

fn big(count: u32, hours: u64) -> RequestSpec {
    RequestSpec { duration: Millis(hours * HOUR), ..spec(count, Share::Whole, "big") }
}

#[test]
fn leases_book_their_terms_and_a_request_waits_for_the_next_day() {
    let mut federation = Federation::limited(&daily("16"));
    let (_, lease) = federation.running(big(8, 1));
    federation.running(big(4, 2));
    assert_eq!(federation.booked(NOON), "16");
    let waiting = federation.submit(big(1, 1));
    assert!(federation.place().is_empty());
    let (code, reason, unblock) = obstacle(&federation, &big(1, 1));
    assert_eq!(code, "gpu-hours-exhausted");
    let left = "quota `daily` for tenant `team` allows 16 GPU-hours per day; 0 are left in the day until \
                2027-01-13T23:00:00Z, and the lease needs 1";
    assert_eq!(reason, left);
    assert_eq!(unblock, "wait until 2027-01-13T23:00:00Z, or raise the limit in Quota daily (quotas.yaml:6)");

    // Half of what the released lease booked comes back; what it used does not.
    federation.now = NOON + HOUR / 2;
    release(&mut federation, lease);
    assert_eq!(federation.booked(NOON), "11.999");
    let placed = federation.place();
    assert_eq!(federation.state.requests[&waiting].lease, placed.first().copied());
    federation.run(placed[0]);
    let (_, _, unblock) = obstacle(&federation, &big(8, 1));
    assert!(unblock.starts_with("ask for at most 22m"), "{unblock}");

    // Time alone has to reach the planner.
    let later = federation.submit(big(8, 2));
    let mut planner = scheduler::Planner::default();
    while federation.state.next_due().unwrap().0 < MIDNIGHT {
        assert!(planner.plan(&federation.state, 100).placements.is_empty());
        federation.expire_at(federation.state.next_due().unwrap().0);
    }
    assert_eq!(federation.state.next_due().unwrap().0, MIDNIGHT);
    let ended: Vec<LeaseId> = federation.state.live_leases().map(|(id, _)| id).collect();
    ended.into_iter().for_each(|lease| federation.stop(lease));
    federation.expire_at(MIDNIGHT);
    let plan = planner.plan(&federation.state, 100);
    assert_eq!(plan.placements.iter().map(|it| it.request).collect::<Vec<_>>(), [later]);
}

#[test]
fn a_lease_counts_in_every_day_that_it_touches() {
    let mut federation = Federation::limited(&daily("16"));
    federation.now = MIDNIGHT - HOUR;
    // One hour today, and ten minutes less than two hours tomorrow.
    let minutes = |minutes: u64| RequestSpec { duration: Millis(minutes * MINUTE), ..big(8, 1) };
    federation.running(minutes(170));
    assert_eq!((federation.booked(NOON).as_str(), federation.booked(MIDNIGHT).as_str()), ("7.999", "14.666"));
    // There is room today, and for ten minutes tomorrow; a lease may become active two minutes late.
    let (code, reason, unblock) = obstacle(&federation, &big(8, 2));
    assert_eq!(code, "gpu-hours-exhausted");
    assert!(reason.contains("1.333 are left in the day until 2027-01-14T23:00:00Z"), "{reason}");
    assert!(unblock.starts_with("ask for at most 1h7m59s, wait until 2027-01-14T23:00:00Z"), "{unblock}");
    assert_eq!(obstacle_code(&federation, &minutes(67)), None);
    // More than any days together allow never fits.
    let (code, reason, _) = obstacle(&federation, &big(16, 4));
    assert_eq!(code, "request-too-large");
    assert!(reason.ends_with("allows 16 GPU-hours per day, and the request needs 64"), "{reason}");
}

fn obstacle_code(federation: &Federation, spec: &RequestSpec) -> Option<String> {
    let explanation = comity_core::explain::explain(&federation.state, spec);
    explanation.donors.iter().find(|it| it.donor.as_str() == "north")?.obstacle.as_ref().map(|it| it.code.clone())
}

#[test]
fn fractions_and_milliseconds_are_exact() {
    let mut federation = Federation::limited(&daily("0.001"));
    let device = super::federation::device(40_960, comity_core::inventory::Sharing::Fractional { step_milli: 1 });
    federation.offer("north", super::federation::offer(2, &[("n1", 1, device)]));
    let least = |seconds: u64| RequestSpec { duration: Millis(seconds * 1_000), ..spec(1, Share::Milli(100), "small") };
    let (_, lease) = federation.running(least(36));
    assert_eq!(federation.booked(NOON), "0.001");
    assert_eq!(obstacle_code(&federation, &least(10)).unwrap(), "gpu-hours-exhausted");
    // Used until now: some milliseconds. Ten seconds fit again, and exactly the rest, but nothing more.
    release(&mut federation, lease);
    let booked = federation.state.gpu_time_booked().iter().map(|(_, _, time)| time).sum::<u128>();
    assert!(booked > 0 && booked.is_multiple_of(100), "{booked}");
    let rest = u64::try_from((GPU_HOUR / 1_000 - booked) / 100).unwrap();
    let of = |ms: u64| RequestSpec { duration: Millis(ms), ..least(1) };
    assert_eq!(obstacle_code(&federation, &of(rest + 1)).unwrap(), "gpu-hours-exhausted");
    federation.running(of(rest));
    assert_eq!(federation.state.gpu_time_booked().iter().map(|it| it.2).sum::<u128>(), GPU_HOUR / 1_000);
}

#[test]
fn a_renewal_that_does_not_fit_is_refused_and_the_end_names_the_quota() {
    let mut federation = Federation::limited(&daily("16"));
    let (_, lease) = federation.running(big(8, 1));
    federation.now = NOON + HOUR / 2;
    // Four are used, so one and a half hours are left.
    federation.renew_for(lease, HOUR).unwrap();
    let refusal = federation.renew_for(lease, 2 * HOUR).unwrap_err();
    assert_eq!(refusal.code, Code::PolicyDenied);
    assert!(refusal.remedy.starts_with("ask for at most 1h30m, wait until 2027-01-13T23:00:00Z"), "{refusal:?}");
    federation.renew_for(lease, 90 * MINUTE - 100).unwrap();
    assert_eq!(federation.booked(NOON), "15.999");
    let end = federation.state.leases[&lease].expires_at.unwrap().0;
    federation.expire_at(end);
    let ended = &federation.state.leases[&lease];
    assert_eq!(ended.state, LeaseState::Ending);
    assert!(
        ended.message.starts_with("its term ran out; a new one is not allowed: quota `daily`"),
        "{}",
        ended.message
    );
    assert!(ended.message.ends_with("[Quota daily (quotas.yaml:6)]"), "{}", ended.message);
    // Without a quota in the way nothing is said of one.
    let mut free = Federation::limited(&daily("1600"));
    let (_, lease) = free.running(big(8, 1));
    free.expire_at(NOON + 2 * HOUR);
    assert_eq!(free.state.leases[&lease].message, "its term ran out");
}

#[test]
fn a_lease_that_never_runs_uses_nothing() {
    let mut federation = Federation::limited(&daily("16"));
    federation.submit(big(8, 1));
    let lease = federation.place()[0];
    assert_eq!(federation.booked(NOON), "8");
    federation.expire_at(federation.state.leases[&lease].hold_until.0);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    assert_eq!(federation.booked(NOON), "0");
}

#[test]
fn a_replacement_needs_no_hours_of_its_own() {
    let mut federation = Federation::limited(&daily("32"));
    federation.offer("north", super::federation::offer(2, &[]));
    let (request, lease) = federation.running(yielding(4, 0));
    let end = federation.state.leases[&lease].expires_at.unwrap();
    assert_eq!(federation.booked(NOON), "32");
    federation.offer("north", comity_core::inventory::Offer { generation: 3, ..used(3, &[("n1", 8, 0)]) });
    federation.now = NOON + HOUR;
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let next = federation.place()[0];
    assert_eq!(federation.booked(NOON), "32");
    federation.run(next);
    assert_eq!(federation.state.leases[&next].expires_at, Some(end), "it ends when the other one would have");
    assert_eq!(federation.booked(NOON), "32", "one of the two counts");
    federation.report_lease("west", lease, LeaseOutcome::Checkpointed);
    assert_eq!(federation.state.requests[&request].lease, Some(next));
    assert_eq!(federation.booked(NOON), "32");
    federation.now = NOON + 2 * HOUR;
    release(&mut federation, next);
    assert_eq!(federation.booked(NOON), "7.999");
}

#[test]
fn a_replacement_that_fails_gives_its_hours_back_to_the_first_lease() {
    let mut federation = Federation::limited(&daily("32"));
    federation.offer("north", super::federation::offer(2, &[]));
    let (_, lease) = federation.running(yielding(4, 0));
    federation.offer("north", comity_core::inventory::Offer { generation: 3, ..used(3, &[("n1", 8, 0)]) });
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let next = federation.place()[0];
    federation.run(next);
    release(&mut federation, next);
    assert!(!federation.state.leases[&next].meter.counts() && federation.state.leases[&lease].meter.counts());
    assert_eq!(federation.booked(NOON), "32");
}

#[test]
fn what_was_granted_under_another_policy_runs_on_and_nothing_new_begins() {
    let mut federation = Federation::limited(&daily("16"));
    let (_, lease) = federation.running(big(8, 2));
    federation.now = NOON + HOUR;
    federation.limit_hours(&daily("12"));
    assert_eq!(federation.booked(NOON), "16", "the same quota with another limit counts on");
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    assert_eq!(obstacle_code(&federation, &big(1, 1)).unwrap(), "gpu-hours-exhausted");
    // Shorter is allowed, longer is not.
    assert!(federation.renew_for(lease, 2 * HOUR).is_err());
    federation.renew_for(lease, HOUR / 2).unwrap();
    release(&mut federation, lease);
    // Of another quota, only leases in force count.
    federation.limit_hours(&daily("12").replace("per: day", "per: week"));
    assert!(federation.state.gpu_time_booked().is_empty());
}

#[test]
fn what_is_left_is_shown_for_each_limit_and_period() {
    let quota =
        daily("16").replace("  gpuHours:", "  maxConcurrentGpus: 12\n  perUser: {maxConcurrentGpus: 6}\n  gpuHours:");
    let mut federation = Federation::limited(&quota);
    federation.running(big(4, 2));
    federation.now = MIDNIGHT - HOUR;
    federation.ok(Command::Expire(Expire {}));
    let alice = "spiffe://test.example/user/alice";
    let wanted = RequestSpec { submitted_by: alice.into(), ..big(2, 2) };
    let quote = comity_core::explain::quote(&federation.state, &wanted);
    let uses = comity_core::explain::quota_uses(&federation.state, &wanted, Some(&quote));
    let shown: Vec<_> = uses
        .iter()
        .map(|it| {
            (
                it.by.line,
                it.per_user,
                it.period.is_some(),
                [it.limit_milli, it.used_milli, it.needs_milli, it.left_milli()],
            )
        })
        .collect();
    // The lease of noon has ended; its donor has not cleaned up.
    assert_eq!(shown[0], (6, false, false, [12_000, 4_000, 2_000, 6_000]));
    assert_eq!((shown[1].0, shown[1].1, shown[1].2, shown[1].3[0]), (8, false, true, 16_000));
    let ends: Vec<u64> = uses.iter().filter_map(|it| Some(it.period?.1.end_ms)).collect();
    assert_eq!(ends, [MIDNIGHT, MIDNIGHT + 24 * HOUR]);
    // Eight are used today. Two GPUs for an hour today, and for up to an hour and two minutes tomorrow.
    assert_eq!(shown[1].3[1..], [8_000, 2_000, 6_000]);
    assert_eq!(shown[2].3, [16_000, 0, 2_067, 13_933]);
    assert_eq!(shown[3], (7, true, false, [6_000, 4_000, 2_000, 0]));
}

#[test]
fn a_limit_on_each_user_leaves_the_others_alone() {
    let quota = daily("100").replace(
        "  gpuHours:",
        "  perUser: {maxConcurrentGpus: 4, gpuHours: {limit: 6, per: day, timeZone: Europe/Berlin}}\n  gpuHours:",
    );
    let mut federation = Federation::limited(&quota);
    let alice = federation.submit_as("alice", big(4, 1));
    let more = federation.submit_as("alice", big(1, 1));
    let bob = federation.submit_as("bob", big(4, 1));
    assert_eq!(federation.place().len(), 2);
    let state_of = |federation: &Federation, request| federation.state.requests[&request].state;
    assert_eq!([alice, more, bob].map(|it| state_of(&federation, it) == RequestState::Placed), [true, false, true]);
    let lease = federation.state.requests[&alice].lease.unwrap();
    federation.run(lease);
    federation.now = NOON + HOUR;
    release(&mut federation, lease);
    federation.stop(lease);
    assert_eq!(federation.place().len(), 1, "one GPU-hour of the two that are left");
    let long = RequestSpec { submitted_by: "spiffe://test.example/user/alice".into(), ..big(2, 1) };
    let (code, reason, unblock) = obstacle(&federation, &long);
    assert_eq!(code, "gpu-hours-exhausted");
    assert!(
        reason.starts_with("quota `daily` for each user of tenant `team` allows 6 GPU-hours per day; 1"),
        "{reason}"
    );
    assert!(unblock.ends_with("raise the limit in Quota daily (quotas.yaml:6)"), "{unblock}");
}

#[test]
fn a_plan_of_a_lower_limit_names_the_leases_that_end() {
    let mut federation = Federation::limited(&daily("16"));
    let (_, lease) = federation.running(big(8, 1));
    federation.expire_at(NOON + 10 * MINUTE);
    let plan = plan_of(&federation.state, super::policy_changes::unforced(policy(&daily("8")))).unwrap();
    let fates: Vec<_> = plan.leases.named.iter().map(|it| (it.lease, it.code.as_str())).collect();
    assert_eq!(fates, [(lease, "gpu-hours-exhausted")]);
    let plan = plan_of(&federation.state, super::policy_changes::unforced(policy(&daily("0")))).unwrap();
    assert!(plan.borrowing.named.iter().all(|it| it.denied.is_some()) && plan.borrowing.count > 0, "{plan:?}");
}

#[test]
fn an_outage_lengthens_leases_above_the_limit_and_nothing_new_begins() {
    let mut federation = Federation::limited(&daily("8"));
    let (_, lease) = federation.running(big(8, 1));
    federation.now = NOON + HOUR / 2;
    federation.ok(Command::BeginTerm(BeginTerm {
        broker: 1,
        outage: Millis(10 * MINUTE),
        nonce_key: NonceKey::default(),
    }));
    assert_eq!(federation.booked(NOON), "9.333");
    assert_eq!(obstacle_code(&federation, &big(1, 1)).unwrap(), "gpu-hours-exhausted");
    assert!(federation.renew_for(lease, HOUR).is_err());
}

#[test]
fn use_is_kept_when_log_time_is_moved_back_into_the_day_before() {
    let mut federation = Federation::limited(&daily("16"));
    federation.now = MIDNIGHT;
    let (_, lease) = federation.running(big(8, 1));
    federation.now = MIDNIGHT + 30 * MINUTE;
    release(&mut federation, lease);
    assert_eq!(federation.booked(MIDNIGHT), "3.999");
    federation.ok(Command::RebaseTime(RebaseTime { from_shift_ms: 0, by_ms: -(HOUR as i64) }));
    assert_eq!(federation.booked(NOON), "3.999");
    assert_eq!(invariants::violations(&federation.state), Vec::<String>::new());
}

/// Sums the use of leases from step to step, by quota and date: what the limits are about.
#[derive(Default)]
struct Meters(BTreeMap<(&'static str, String), u128>);

const LIMITS: [(&str, u128); 4] = [("daily", 6), ("weekly", 20), ("small", 1), ("each", 5)];
const QUOTAS: &str = "apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: daily}
spec:
  tenant: team
  gpuHours: {limit: 6, per: day, timeZone: Europe/Berlin}
---
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: weekly}
spec:
  institution: western
  gpuHours: {limit: 20, per: week, timeZone: UTC}
---
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: small}
spec:
  tenant: team
  classes: [small]
  gpuHours: {limit: 1, per: day, timeZone: Europe/Berlin}
---
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: each}
spec:
  institution: western
  perUser:
    maxConcurrentGpus: 4
    gpuHours: {limit: 5, per: day, timeZone: Europe/Berlin}
";

/// The period of a time in a calendar that is not the policy's.
fn period(quota: &str, at_ms: u64) -> String {
    let zone = TimeZone::get(if quota == "weekly" { "UTC" } else { "Europe/Berlin" }).unwrap();
    let at = Instant::from_millisecond(at_ms as i64).unwrap().to_zoned(zone);
    if quota == "weekly" { at.strftime("%G-W%V").to_string() } else { at.date().to_string() }
}

impl Meters {
    fn advance(&mut self, state: &State, until: Timestamp) {
        let works = |lease: &&Lease| {
            let replaced = lease.moved_to.and_then(|next| state.leases.get(&next));
            lease.state.is_in_force() && !replaced.is_some_and(|next| next.state.is_in_force())
        };
        // Minutes are short enough to belong to one period, as all begin at a full minute.
        let (mut at, until) = (state.log_time.0, until.0);
        while at < until {
            let next = until.min(at - at % MINUTE + MINUTE);
            for lease in state.leases.values().filter(works) {
                let end = next.min(lease.expires_at.unwrap().0);
                let time = u128::from(lease.placement.milli()) * u128::from(end.saturating_sub(at));
                for (quota, _) in LIMITS {
                    if quota != "small" || lease.class.as_str() == "small" {
                        *self.0.entry((quota, period(quota, at))).or_default() += time;
                    }
                }
            }
            at = next;
        }
    }

    fn check(&self) {
        for ((quota, period), time) in &self.0 {
            let limit = LIMITS.iter().find(|(name, _)| name == quota).unwrap().1 * GPU_HOUR;
            assert!(*time <= limit, "{quota} in {period}: {} of {}", show_gpu_hours(*time), show_gpu_hours(limit));
        }
    }
}

/// Events that lengthen leases without a grant, or move time, are not among them.
fn granted(event: &Event) -> bool {
    !matches!(event, Event::BeginTerm(_) | Event::Rebase(_))
}

fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..2_000_u64, 3 => 0..40 * MINUTE, 1 => 0..20 * HOUR]
}

/// Noon before each change of the clocks of 2027, and a day between.
fn begins() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1_806_145_200_000_u64), Just(1_824_890_400_000), Just(NOON)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_limit_is_ever_exceeded(
        events in proptest::collection::vec((event().prop_filter("granted", granted), pause()), 1..120),
        begins in begins(),
    ) {
        let mut federation = Federation::ready();
        federation.now = begins;
        federation.limit_hours(QUOTAS);
        let mut meters = Meters::default();
        let federation = happen_in(federation, &events, |state, until| meters.advance(state, until));
        meters.advance(&federation.state, federation.state.log_time.after(Millis(2 * HOUR)));
        meters.check();
    }

    /// Debug builds check the invariants after each entry, also of outages and re-bases.
    #[test]
    fn replicas_agree_on_hours(
        events in proptest::collection::vec((event(), pause()), 1..90),
        begins in begins(),
    ) {
        let mut federation = Federation::ready();
        federation.now = begins;
        federation.limit_hours(QUOTAS);
        let federation = happen_in(federation, &events, |_, _| {});
        let mut replica = State::default();
        for (index, entry) in federation.log.iter().enumerate() {
            if index % 7 == 0 {
                replica = snapshot::decode(&snapshot::encode(&replica).unwrap()).unwrap();
            }
            replica.apply(entry).unwrap();
        }
        prop_assert_eq!(snapshot::encode(&replica).unwrap(), snapshot::encode(&federation.state).unwrap());
        prop_assert_eq!(replica.gpu_time_booked(), federation.state.gpu_time_booked());
    }
}

#[test]
fn the_meters_of_the_property_see_an_excess() {
    let mut federation = Federation::ready();
    federation.now = NOON;
    federation.running(big(8, 1));
    let mut meters = Meters::default();
    meters.advance(&federation.state, federation.state.log_time.after(Millis(HOUR)));
    assert!(std::panic::catch_unwind(|| meters.check()).is_err());
    assert!(matches!(federation.ok(Command::Expire(Expire {})).reply, Ok(ReplyBody::Expired { .. })));
}
