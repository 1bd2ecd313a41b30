//! Schedules: terms, classes and quotas by the time of the week.

use comity_policy::{
    BorrowFacts, Bundle, BundleSource, DenyCode, InUse, Problem, ProblemCode, SourceFile, load, render_problems,
};
use comity_types::Delivery;

const HOUR: u64 = 3_600_000;
/// 2027-01-13T12:00:00+01:00, a Wednesday.
const WEDNESDAY_NOON: u64 = 1_799_838_000_000;

/// A lender whose terms, class and quota are given.
fn files(schedule: &str, term: &str, class: &str, quota: &str) -> Vec<SourceFile> {
    let text = format!(
        "apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {{name: day-and-night}}
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
spec: {{selector: 'device.memoryMiB > 0', rank: 1{class}}}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {{name: team}}
spec: {{institution: campus, classes: [midrange], clusters: [desk], members: [{{id: spiffe://a.example/user/bo, role: submitter}}]}}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {{name: farm}}
spec:
  institution: campus
  reclaimGrace: 30m
  lends:
    - {{classes: [midrange]{term}}}
---
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {{name: of-team}}
spec: {{tenant: team, maxConcurrentGpus: 2{quota}}}
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {{name: working-hours}}
spec:
{schedule}
"
    );
    vec![SourceFile { path: "all.yaml".to_owned(), text }]
}

const WORKING_HOURS: &str = "  timeZone: Europe/Zurich
  windows: [{days: [mon, tue, wed, thu, fri], from: '08:00', until: '18:00'}]
  except: [2027-01-14]";

fn bundle(term: &str, class: &str, quota: &str) -> Bundle {
    load(files(WORKING_HOURS, term, class, quota)).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)))
}

fn problems(schedule: &str) -> Vec<Problem> {
    load(files(schedule, "", "", "")).expect_err("problems")
}

fn ask(now_ms: u64, hours: u64, notice_ms: Option<u64>) -> BorrowFacts<'static> {
    BorrowFacts {
        tenant: "team",
        user: "",
        origin_cluster: "desk",
        donor_cluster: "farm",
        class: "midrange",
        gpus_milli: 1_000,
        beside_milli: 0,
        delivery: Delivery::Namespace,
        duration_ms: hours * HOUR,
        notice_ms,
        now_ms,
        data: &[],
        purpose: "",
        in_use: InUse::default(),
    }
}

#[test]
fn a_term_is_lent_in_its_hours_and_leases_end_with_them() {
    let by_day = bundle(", during: working-hours", "", "");
    let at_night = bundle(", outside: working-hours", "", "");
    let (noon, evening) = (WEDNESDAY_NOON, WEDNESDAY_NOON + 6 * HOUR);
    for (bundle, facts, expected) in [
        (&by_day, ask(noon, 6, None), None),
        (&by_day, ask(noon, 7, None), Some(DenyCode::ScheduleEndsTooSoon)),
        // What may be reclaimed needs its notice only.
        (&by_day, ask(noon, 7, Some(HOUR / 2)), None),
        (&by_day, ask(evening - HOUR / 2, 7, Some(HOUR / 2)), Some(DenyCode::ScheduleEndsTooSoon)),
        (&by_day, ask(evening - HOUR / 2 - 1, 7, Some(HOUR / 2)), None),
        (&by_day, ask(evening, 1, None), Some(DenyCode::OutsideSchedule)),
        // Nobody works on the excepted Thursday.
        (&by_day, ask(noon + 24 * HOUR, 1, None), Some(DenyCode::OutsideSchedule)),
        (&at_night, ask(noon, 1, None), Some(DenyCode::OutsideSchedule)),
        (&at_night, ask(evening, 38, None), None),
        (&at_night, ask(evening, 39, None), Some(DenyCode::ScheduleEndsTooSoon)),
    ] {
        let decision = bundle.may_borrow(&facts);
        assert_eq!(decision.denial().map(|denial| denial.code), expected, "{facts:?}");
        assert!(expected.is_none_or(DenyCode::may_pass));
    }
    let decision = by_day.may_borrow(&ask(evening, 1, None));
    let denial = decision.denial().expect("denied");
    assert_eq!(denial.message, "the term of `farm` for `midrange` is in force during `working-hours` only");
    assert!(denial.unblock.starts_with("wait 1d14h, until 2027-01-15T07:00:00Z, or change Cluster farm (all.yaml:"));
    assert_eq!((denial.by[0].name.as_str(), denial.by[0].line), ("farm", 28));
}

#[test]
fn a_class_and_a_quota_have_hours_too() {
    let evening = WEDNESDAY_NOON + 6 * HOUR;
    let class = bundle("", ", outside: working-hours", "");
    let code = |decision: comity_policy::Decision| decision.denial().map(|denial| denial.code);
    assert_eq!(code(class.may_borrow(&ask(WEDNESDAY_NOON, 1, None))), Some(DenyCode::OutsideSchedule));
    assert_eq!(code(class.may_borrow(&ask(evening, 1, None))), None);
    let quota = bundle("", "", ", during: working-hours");
    let three = |now_ms| BorrowFacts { gpus_milli: 3_000, ..ask(now_ms, 24, None) };
    assert_eq!(code(quota.may_borrow(&three(WEDNESDAY_NOON))), Some(DenyCode::RequestTooLarge));
    assert_eq!(code(quota.may_borrow(&three(evening))), None);
}

#[test]
fn wrong_schedules_are_named_with_the_remedy() {
    let zone = |name: &str| format!("  timeZone: {name}\n  windows: [{{days: [mon], from: '08:00', until: '18:00'}}]");
    let windows = |window: &str| format!("  timeZone: UTC\n  windows: [{window}]");
    let many = ["{days: [mon, tue, wed, thu, fri, sat, sun], from: '08:00', until: '09:00'}"; 9].join(", ");
    for (schedule, code, remedy) in [
        (zone("Europe/Zurch"), ProblemCode::UnknownTimeZone, "did you mean `Europe/Zurich`?"),
        (zone("Mars"), ProblemCode::UnknownTimeZone, "write a name of the IANA database"),
        (windows("{days: [mon], from: '8:00', until: '18:00'}"), ProblemCode::InvalidDate, "hour: \"08:00\""),
        (windows("{days: [mon], from: noon, until: '18:00'}"), ProblemCode::InvalidDate, "write hours and minutes"),
        (
            windows(&["{days: [mon], from: '08:00', until: '09:00'}"; 2].join(", ")),
            ProblemCode::DuplicateName,
            "remove one of them",
        ),
        (windows("{days: [mon], from: '24:00', until: '18:00'}"), ProblemCode::InvalidDate, "to \"23:59\""),
        (windows("{days: [monday], from: '08:00', until: '18:00'}"), ProblemCode::InvalidValue, "known here: `mon`"),
        (windows("{days: [mon, mon], from: '08:00', until: '18:00'}"), ProblemCode::DuplicateName, "remove one"),
        (windows("{days: [], from: '08:00', until: '18:00'}"), ProblemCode::MissingField, "name at least one day"),
        (windows(""), ProblemCode::MissingField, "write for example"),
        (windows(&many), ProblemCode::TooLarge, "merge windows"),
        (
            windows("{days: [mon, tue, wed, thu, fri, sat, sun], from: '08:00', until: '08:00'}"),
            ProblemCode::Contradiction,
            "a schedule that never closes",
        ),
        (format!("{WORKING_HOURS}, 25.12.2027]").replace("14], ", "14, "), ProblemCode::InvalidDate, "2026-12-25"),
    ] {
        let found = problems(&schedule);
        assert_eq!(found[0].code, code, "{schedule}: {}", render_problems(&found));
        assert!(found[0].remedy.contains(remedy), "{schedule}: {}", found[0].remedy);
    }
    let both = load(files(WORKING_HOURS, ", during: working-hours, outside: working-hours", "", "")).expect_err("both");
    assert_eq!((both[0].code, both[0].line), (ProblemCode::Contradiction, 28));
    let missing = load(files(WORKING_HOURS, ", during: nights", "", "")).expect_err("no such schedule");
    assert_eq!(missing[0].code, ProblemCode::UnknownReference);
    let idle = load(files(WORKING_HOURS, "", "", ", during: working-hours, idleRelease: 1h")).expect_err("idle");
    assert!(idle[0].message.contains("`idleRelease` of Quota `of-team` is in force always"), "{}", idle[0].message);
}

#[test]
fn replicas_use_the_offsets_that_came_with_the_files() {
    let source = BundleSource::of_files(files(WORKING_HOURS, ", during: working-hours", "", ""));
    let refused = Bundle::compile_replicated(&source).expect_err("offsets are missing");
    assert_eq!(refused[0].code, ProblemCode::UnknownTimeZone);
    let compiled = Bundle::compile(&source).unwrap();
    let replicated = Bundle::compile_replicated(compiled.source()).unwrap();
    assert_eq!(replicated, compiled);
    assert_eq!(replicated.source().zones.keys().collect::<Vec<_>>(), ["Europe/Zurich"]);
    // Rules of another release of the database: a zone that is at UTC.
    let mut other = compiled.source().clone();
    let utc = serde_json::from_str(r#"{"firstS": 0, "changes": []}"#).unwrap();
    other.zones.insert("Europe/Zurich".to_owned(), utc);
    let other = Bundle::compile_replicated(&other).unwrap();
    let after_six = ask(WEDNESDAY_NOON + 6 * HOUR, 1, None);
    assert!(compiled.may_borrow(&after_six).denial().is_some() && other.may_borrow(&after_six).denial().is_none());
    assert_eq!(other.hash, compiled.hash, "the hash is that of the files");
    let changes = other.changes_since(Some(&compiled));
    assert_eq!((changes.documents.len(), &changes.zones[..]), (0, &["Europe/Zurich".to_owned()][..]));
    assert!(!changes.is_empty());
    let mut unsound = compiled.source().clone();
    let reversed = serde_json::from_str(r#"{"firstS": 0, "changes": [[2, 0], [1, 0]]}"#).unwrap();
    unsound.zones.insert("Europe/Zurich".to_owned(), reversed);
    assert!(Bundle::compile_replicated(&unsound).is_err());
}
