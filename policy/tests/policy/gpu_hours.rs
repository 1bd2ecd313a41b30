//! Quotas of GPU-hours: how they are read, and that they only ever deny.

use comity_policy::{
    BorrowFacts, Bundle, DenyCode, GpuTimeFacts, GpuTimeTable, InUse, LeaseUse, LimitKey, ProblemCode, SourceFile,
    UsageTable, load,
};
use comity_types::Delivery;
use proptest::prelude::*;

const ALL: LimitKey<'static> = LimitKey { quota: "q", user: "" };
const HOUR: u64 = 3_600_000;
/// 2027-01-13T12:00:00+01:00, a Wednesday.
const NOON: u64 = 1_799_838_000_000;

fn files(quota: &str) -> Vec<SourceFile> {
    let text = format!(
        "apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {{name: hours}}
spec: {{trustDomain: a.example, maintainers: [spiffe://a.example/user/ada]}}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {{name: campus}}
spec: {{displayName: Campus, contact: a@a.example, clusters: [desk, farm]}}
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {{name: midrange}}
spec: {{selector: 'device.memoryMiB > 0', rank: 1}}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {{name: team}}
spec: {{institution: campus, classes: [midrange], clusters: [desk], members: [{{id: spiffe://a.example/user/bo, role: submitter}}]}}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {{name: farm}}
spec: {{institution: campus, lends: [{{classes: [midrange]}}]}}
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {{name: nights}}
spec: {{timeZone: UTC, windows: [{{days: [mon], from: '20:00', until: '06:00'}}]}}
{quota}"
    );
    vec![SourceFile { path: "all.yaml".to_owned(), text }]
}

fn quota(spec: &str) -> String {
    format!(
        "---\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {{name: q}}\nspec: {{tenant: team, {spec}}}\n"
    )
}

fn bundle(quota: &str) -> Bundle {
    load(files(quota)).expect("a valid bundle")
}

fn ask(gpus_milli: u64, duration_ms: u64, now_ms: u64) -> BorrowFacts<'static> {
    BorrowFacts {
        tenant: "team",
        user: "",
        origin_cluster: "desk",
        donor_cluster: "farm",
        class: "midrange",
        gpus_milli,
        beside_milli: 0,
        delivery: Delivery::Namespace,
        duration_ms,
        notice_ms: None,
        now_ms,
        data: &[],
        purpose: "",
        in_use: InUse::default(),
    }
}

#[test]
fn wrong_limits_are_named_with_the_remedy() {
    for (spec, code, words) in [
        ("gpuHours: {limit: 5, per: fortnight, timeZone: UTC}", ProblemCode::InvalidValue, "day, week, month, year"),
        ("gpuHours: {limit: -5, per: day, timeZone: UTC}", ProblemCode::InvalidQuantity, "cannot be negative"),
        ("gpuHours: {limit: 5m, per: day, timeZone: UTC}", ProblemCode::InvalidQuantity, "GPU-hours like `500`"),
        ("gpuHours: {limit: 2000000000, per: day, timeZone: UTC}", ProblemCode::InvalidQuantity, "one billion"),
        ("gpuHours: {limit: 5, per: day, timeZone: Europe/Berln}", ProblemCode::UnknownTimeZone, "`Europe/Berlin`"),
        ("gpuHours: {limit: 5, per: day}", ProblemCode::MissingField, "timeZone"),
        ("perUser: {}", ProblemCode::MissingField, "add `maxConcurrentGpus` or `gpuHours`"),
        (
            "maxConcurrentGpus: 1, perUser: {gpuHours: {limit: 5, per: day, timeZone: UTC}}, during: nights",
            ProblemCode::Contradiction,
            "`perUser.gpuHours` of",
        ),
        ("classes: [], maxConcurrentGpus: 1", ProblemCode::MissingField, "leave the field out for all"),
        ("classes: [huge], maxConcurrentGpus: 1", ProblemCode::UnknownReference, "huge"),
        ("gpuHours: {limit: 5, per: day, timeZone: UTC}, during: nights", ProblemCode::Contradiction, "of its own"),
    ] {
        let problems = load(files(&quota(spec))).expect_err(spec);
        let shown = problems.iter().map(|it| format!("{} {}", it.message, it.remedy)).collect::<String>();
        assert!(problems.iter().any(|problem| problem.code == code) && shown.contains(words), "{spec}: {problems:#?}");
    }
}

#[test]
fn a_citation_of_an_allowance_names_the_limit() {
    let bundle = bundle(&quota("gpuHours: {limit: 5, per: day, timeZone: UTC}"));
    let decision = bundle.may_borrow(&ask(1_000, HOUR, NOON));
    let comity_policy::Decision::Allow(allowance) = decision else { panic!("{decision:?}") };
    assert!(allowance.because.iter().any(|by| by.name == "q" && by.line > 0), "{allowance:?}");
}

#[test]
fn what_others_booked_counts_to_the_millisecond() {
    let bundle = bundle(&quota("gpuHours: {limit: 5, per: day, timeZone: Europe/Berlin}"));
    let (limit, day) = bundle.gpu_time_limit(ALL, NOON).expect("a limit");
    for (others, code) in [(limit - 1_000 * u128::from(HOUR), None), (limit - 1_000 * u128::from(HOUR) + 1, Some(()))] {
        let mut booked = GpuTimeTable::default();
        booked.add(ALL, day.start_ms, others);
        let gpu_time =
            Some(GpuTimeFacts { booked: &booked, gpus_milli: 1_000, until_ms: NOON + 2 * HOUR, most_ms: HOUR });
        let facts = BorrowFacts { in_use: InUse { gpu_time, ..InUse::default() }, ..ask(1_000, HOUR, NOON) };
        let decision = bundle.may_borrow(&facts);
        assert_eq!(decision.denial().map(|it| it.code), code.map(|()| DenyCode::GpuHoursExhausted), "{decision:?}");
    }
}

#[test]
fn limits_on_each_user_count_that_user_alone() {
    let limits = "maxConcurrentGpus: 3, perUser: {maxConcurrentGpus: 2, gpuHours: {limit: 4, per: day, timeZone: UTC}}";
    let bundle = bundle(&quota(limits));
    let mut table = UsageTable::default();
    let of = |user| LeaseUse {
        tenant: "team",
        user,
        institution: "campus",
        donor: "farm",
        class: "midrange",
        agreement: None,
        gpus_milli: 1_000,
        replaced: false,
    };
    table.add(&of("bo"));
    let key = LimitKey { quota: "q", user: "bo" };
    let (_, day) = bundle.gpu_time_limit(key, NOON).expect("a limit");
    let mut booked = GpuTimeTable::default();
    booked.add(key, day.start_ms, 3 * 3_600_000_000);
    let denied = |user: &str, gpus_milli, hours: u64| {
        let duration_ms = hours * HOUR;
        let until_ms = NOON + duration_ms;
        let gpu_time = Some(GpuTimeFacts { booked: &booked, gpus_milli, until_ms, most_ms: duration_ms });
        let in_use = InUse { gpu_time, ..table.in_use("team", "campus", user, "farm") };
        let facts = BorrowFacts { user, in_use, ..ask(gpus_milli, duration_ms, NOON) };
        bundle.may_borrow(&facts).denial().cloned()
    };
    assert_eq!(denied("bo", 1_000, 1), None);
    let gpus = denied("bo", 2_000, 1).expect("denied");
    assert!(gpus.message.starts_with("quota `q` for each user of tenant `team` allows 2 GPUs"), "{gpus}");
    assert_eq!(denied("cy", 2_000, 1), None);
    let all = denied("cy", 3_000, 1).expect("denied");
    assert_eq!(all.code, DenyCode::QuotaExhausted, "{all}");
    let hours = denied("bo", 1_000, 2).expect("denied");
    assert_eq!(hours.code, DenyCode::GpuHoursExhausted);
    assert!(
        hours.message.starts_with("quota `q` for each user of tenant `team` allows 4 GPU-hours per day; 1 are left")
    );
    assert_eq!(hours.by[0].line, 34, "{hours:?}");
    assert_eq!(denied("cy", 1_000, 2), None);
    // Nobody known, nobody limited: what a plan of a policy asks.
    assert_eq!(denied("", 2_000, 2), None);
}

proptest! {
    #[test]
    fn a_quota_never_grants(
        limit in 0_u64..200,
        per in prop_oneof![Just("day"), Just("week"), Just("month"), Just("year")],
        milli in 1_u64..20_000,
        minutes in 1_u64..20_000,
        now_ms in NOON..NOON + 400 * 24 * HOUR,
        booked in 0_u128..1_000_000_000_000,
    ) {
        let limited = bundle(&quota(&format!("gpuHours: {{limit: {limit}, per: {per}, timeZone: Europe/Berlin}}")));
        let free = bundle("");
        let (_, span) = limited.gpu_time_limit(ALL, now_ms).expect("a limit");
        let mut table = GpuTimeTable::default();
        table.add(ALL, span.start_ms, booked);
        let duration_ms = minutes * 60_000;
        let until_ms = now_ms + duration_ms;
        let gpu_time = Some(GpuTimeFacts { booked: &table, gpus_milli: milli, until_ms, most_ms: duration_ms });
        let facts = BorrowFacts { in_use: InUse { gpu_time, ..InUse::default() }, ..ask(milli, duration_ms, now_ms) };
        let (with, without) = (limited.may_borrow(&facts), free.may_borrow(&facts));
        prop_assert!(with.denial().is_some() || without.denial().is_none(), "{:?} {:?}", with, without);
        // What is allowed leaves the table within the limit.
        if with.denial().is_none() {
            let time = u128::from(milli) * u128::from(span.overlap_ms(now_ms, until_ms));
            prop_assert!(booked + time <= u128::from(limit) * 3_600_000_000);
        }
    }
}
