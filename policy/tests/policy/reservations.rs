//! Reservations: what compiles, what is warned of, and when they hold GPUs.

use comity_policy::{Bundle, Problem, ProblemCode, Reservation, SourceFile, load, render_problems};
use jiff::Timestamp;

/// A lender with the terms of its cluster, and reservations for the courses of another institution.
fn files(terms: &str, reservations: &str) -> Vec<SourceFile> {
    let text = format!(
        "apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {{name: reserving}}
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
kind: GpuClass
metadata: {{name: large}}
spec: {{selector: 'device.memoryMiB > 90000', rank: 2}}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {{name: courses}}
spec: {{institution: campus, classes: [midrange], clusters: [desk], members: [{{id: spiffe://a.example/user/bo, role: submitter}}]}}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {{name: farm}}
spec: {{institution: campus, {terms}}}
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {{name: lessons}}
spec:
  timeZone: Europe/Zurich
  windows:
    - {{days: [tue], from: '09:00', until: '12:00'}}
    - {{days: [tue], from: '11:00', until: '13:00'}}
    - {{days: [sun], from: '02:30', until: '04:00'}}
  except: [2027-01-19]
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {{name: mornings}}
spec: {{timeZone: UTC, windows: [{{days: [mon, tue], from: '08:00', until: '12:00'}}]}}
{reservations}"
    );
    vec![SourceFile { path: "all.yaml".to_owned(), text }]
}

fn reservation(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.comity.dev/v1\nkind: Reservation\nmetadata: {{name: {name}}}\n\
         spec: {{tenant: courses, class: midrange, clusters: [farm], {spec}}}\n"
    )
}

const LENDS: &str = "lends: [{classes: [midrange, large]}]";

fn bundle(terms: &str, reservations: &str) -> Bundle {
    load(files(terms, reservations)).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)))
}

fn problems(reservations: &str) -> Vec<Problem> {
    load(files(LENDS, reservations)).expect_err("problems")
}

fn at(text: &str) -> u64 {
    u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
}

fn spec<'b>(bundle: &'b Bundle, name: &str) -> &'b Reservation {
    &bundle.reservations[name].spec
}

#[test]
fn it_holds_gpus_in_the_windows_of_its_schedule_by_the_clocks_of_its_zone() {
    let bundle = bundle(LENDS, &reservation("ml", "gpus: 8, during: lessons"));
    let spans = |from: &str, until: &str| -> Vec<(u64, u64)> {
        let spans = bundle.holding_spans(spec(&bundle, "ml"), at(from), at(until));
        spans.into_iter().map(|span| (span.start_ms, span.end_ms)).collect()
    };
    let expected = |spans: &[(&str, &str)]| -> Vec<(u64, u64)> {
        spans.iter().map(|(from, until)| (at(from), at(until))).collect()
    };
    // Windows that overlap are one. 2027-01-19 is excepted.
    assert_eq!(
        spans("2027-01-12T10:00:00Z", "2027-01-26T08:00:01Z"),
        expected(&[
            ("2027-01-12T08:00:00Z", "2027-01-12T12:00:00Z"),
            ("2027-01-17T01:30:00Z", "2027-01-17T03:00:00Z"),
            ("2027-01-24T01:30:00Z", "2027-01-24T03:00:00Z"),
            ("2027-01-26T08:00:00Z", "2027-01-26T12:00:00Z"),
        ])
    );
    // A window that has ended, and one that has not begun, do not overlap.
    assert_eq!(spans("2027-01-12T12:00:00Z", "2027-01-17T01:30:00Z"), []);
    // The clocks are set forward at 02:00: the window begins with the change. Then back at 03:00: an hour more.
    assert_eq!(
        spans("2027-03-28T00:00:00Z", "2027-03-31T00:00:00Z"),
        expected(
            &[("2027-03-28T01:00:00Z", "2027-03-28T02:00:00Z"), ("2027-03-30T07:00:00Z", "2027-03-30T11:00:00Z"),]
        )
    );
    assert_eq!(
        spans("2027-10-31T00:00:00Z", "2027-11-03T00:00:00Z"),
        expected(
            &[("2027-10-31T00:30:00Z", "2027-10-31T03:00:00Z"), ("2027-11-02T08:00:00Z", "2027-11-02T12:00:00Z"),]
        )
    );
    assert!(bundle.has_reservations_at("farm"));
    assert!(!bundle.has_reservations_at("desk"));
}

#[test]
fn each_span_is_a_phase_of_its_schedule() {
    let bundle = bundle(LENDS, &reservation("ml", "gpus: 8, during: lessons"));
    let schedule = &bundle.schedules["lessons"].spec;
    let rules = &bundle.source().zones["Europe/Zurich"];
    let (from, until) = (at("2027-02-01T00:00:00Z"), at("2027-04-30T00:00:00Z"));
    let spans = bundle.holding_spans(spec(&bundle, "ml"), from, until);
    let mut opened = Vec::new();
    let mut now = from;
    while now < until {
        let phase = schedule.phase_at(rules, now);
        let end = phase.until_ms.unwrap();
        if phase.is_open {
            opened.push((now, end));
        }
        now = end;
    }
    assert_eq!(spans.iter().map(|span| (span.start_ms, span.end_ms)).collect::<Vec<_>>(), opened);
    assert!(opened.len() > 20, "{}", opened.len());
}

#[test]
fn what_is_unused_is_released_while_its_window_is_open() {
    let bundle = bundle(LENDS, &reservation("ml", "gpus: 8, during: lessons, releaseUnusedAfter: 45m"));
    let released = at("2027-01-12T08:45:00Z");
    let spans = |from_ms| bundle.holding_spans(spec(&bundle, "ml"), from_ms, from_ms + 60_000);
    assert_eq!(spans(released - 1).iter().map(|span| span.end_ms).collect::<Vec<_>>(), [released]);
    assert_eq!(spans(released), []);
    // Time alone changes what others may borrow then, and again as the window ends.
    assert_eq!(bundle.next_change_ms(at("2027-01-12T08:10:00Z")), Some(released));
    assert_eq!(bundle.next_change_ms(released), Some(at("2027-01-12T12:00:00Z")));
}

#[test]
fn mistakes_are_reported_with_field_and_remedy() {
    for (text, code, message) in [
        ("gpus: 0, during: lessons", ProblemCode::InvalidQuantity, "gpus"),
        ("gpus: 1, during: lesson", ProblemCode::UnknownReference, "there is no Schedule `lesson`"),
        ("gpus: 1", ProblemCode::MissingField, "during"),
        ("gpus: 1, during: lessons, releaseUnusedAfter: 0s", ProblemCode::InvalidDuration, "releaseUnusedAfter"),
        ("gpus: 1, during: lessons, outside: lessons", ProblemCode::UnknownField, "outside"),
    ] {
        let found = problems(&reservation("ml", text));
        assert_eq!(found.iter().map(|problem| problem.code).collect::<Vec<_>>(), [code], "{text}: {found:?}");
        assert!(found[0].message.contains(message), "{text}: {}", found[0].message);
        assert!(!found[0].remedy.is_empty(), "{text}");
    }
    let found = problems(&reservation("ml", "gpus: 0, during: lessons"));
    assert_eq!(found[0].message, "`gpus: 0` of Reservation `ml` would keep nothing");
    assert!(found[0].remedy.contains("remove the document"), "{}", found[0].remedy);
    let not_a_donor = reservation("ml", "gpus: 1, during: lessons").replace("[farm]", "[desk]");
    let found = problems(&not_a_donor);
    assert!(found[0].message.contains("there is no Cluster `desk`"), "{found:?}");
    let many: String = (0..33).map(|number| reservation(&format!("r{number}"), "gpus: 1, during: lessons")).collect();
    let found = problems(&many);
    assert_eq!(found.iter().map(|problem| problem.code).collect::<Vec<_>>(), [ProblemCode::TooLarge]);
}

#[test]
fn reservations_of_no_use_are_warned_of() {
    let warned = |terms: &str, reservations: &str| {
        let warnings = bundle(terms, reservations).warnings();
        let of_reservations =
            [ProblemCode::ReservationTooLarge, ProblemCode::ReservationOfNoUse, ProblemCode::LimitOfNoUse];
        let found = warnings.into_iter().filter(|warning| of_reservations.contains(&warning.code));
        found.map(|warning| (warning.code, warning.message)).collect::<Vec<_>>()
    };
    let of_eight = reservation("ml", "gpus: 8, during: lessons");
    assert_eq!(warned(LENDS, &of_eight), []);
    for (terms, reservations, code, part) in [
        (
            "maxLentGpus: 4, lends: [{classes: [midrange]}]",
            of_eight.clone(),
            ProblemCode::ReservationTooLarge,
            "`gpus: 8` of Reservation `ml` is more than the `maxLentGpus: 4` of Cluster `farm`",
        ),
        (
            "lends: [{classes: [midrange], maxGpus: 4}, {classes: [midrange], maxGpus: 6}]",
            of_eight.clone(),
            ProblemCode::ReservationTooLarge,
            "`gpus: 8` of Reservation `ml` is more than any term of Cluster `farm` lends to Tenant `courses`",
        ),
        (
            "lends: [{classes: [large]}]",
            of_eight.clone(),
            ProblemCode::ReservationOfNoUse,
            "Reservation `ml` is of no use at `farm`: it does not lend `midrange` to Tenant `courses`",
        ),
        (
            LENDS,
            of_eight.replace("class: midrange", "class: large"),
            ProblemCode::ReservationOfNoUse,
            "Tenant `courses` may not request class `large`",
        ),
        (
            "maxLentGpus: 12, lends: [{classes: [midrange]}]",
            of_eight.clone() + &reservation("vision", "gpus: 6, during: mornings"),
            ProblemCode::ReservationTooLarge,
            "Reservations `ml` and `vision` hold 14 GPUs at `farm` together, for example on ",
        ),
    ] {
        let found = warned(terms, &reservations);
        assert_eq!(found.iter().map(|(code, _)| *code).collect::<Vec<_>>(), [code], "{part}: {found:?}");
        assert!(found[0].1.contains(part), "{}", found[0].1);
    }
    // Released before the other one begins.
    let in_turn = reservation("ml", "gpus: 8, during: mornings, releaseUnusedAfter: 30m")
        + &reservation("vision", "gpus: 6, during: lessons");
    assert_eq!(warned("maxLentGpus: 14, lends: [{classes: [midrange]}]", &in_turn), []);
}
