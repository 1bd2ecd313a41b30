//! Datasets: refusals, the quote, the explanation, the scheduler and reclaims agree on where data may go.

use comity_core::command::{PlaceRequests, RenewLease, SubmitRequest};
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::{Planner, Reclaimer};
use comity_core::{Command, Millis};
use comity_types::{DataNeed, LeaseTreatment};

use super::federation::{Federation, spec};

fn dataset(rest: &str) -> String {
    format!(
        "apiVersion: policy.comity.dev/v1\nkind: Dataset\nmetadata: {{name: scans}}\nspec: {{institution: western{rest}}}\n"
    )
}

const SOUTH: &str = ", mayGoTo: {clusters: [south]}";
const DEFAULTS: &str =
    "  defaults: {leaseTerm: 1h, hold: 2m, peeringIdle: 10m, peeringStep: 20s, heartbeatTimeout: 30s}\n---\n";

impl Federation {
    /// Puts a dataset into force, and what the Federation says about data.
    fn with_data(&mut self, data: &str, dataset: &str) {
        let to = DEFAULTS.replacen("---", &format!("  data: {{{data}}}\n---\n{dataset}---"), 1);
        self.with_terms(DEFAULTS, &to);
    }
}

fn plain(count: u32) -> RequestSpec {
    spec(count, Share::Whole, "big")
}

fn reading(count: u32, purpose: &str) -> RequestSpec {
    let data = vec![DataNeed { dataset: "scans".to_owned(), mib: 1 }];
    RequestSpec { data, purpose: purpose.to_owned(), ..plain(count) }
}

fn refusal_of(federation: &mut Federation, spec: RequestSpec) -> comity_core::Refusal {
    federation.refused(Command::SubmitRequest(SubmitRequest { spec, submitted_by: String::new() }))
}

#[test]
fn requests_are_placed_where_their_data_may_go_and_others_anywhere() {
    let mut federation = Federation::ready();
    federation.also(&dataset(SOUTH));
    let quote = explain::quote(&federation.state, &reading(2, ""));
    assert_eq!(quote.placements[0].donor.as_str(), "south");
    let explained = explain::explain(&federation.state, &reading(2, ""));
    let north = explained.donors.iter().find(|verdict| verdict.donor.as_str() == "north").unwrap();
    let obstacle = north.obstacle.clone().unwrap();
    assert_eq!(
        (obstacle.code.as_str(), obstacle.by),
        ("dataset-not-allowed", vec!["Dataset scans (more.yaml:4)".to_owned()])
    );
    let (_, lease) = federation.running(reading(2, ""));
    let held = &federation.state.leases[&lease];
    assert_eq!((held.placement.donor.as_str(), held.data.len()), ("south", 1));
    // Nobody who may serve it has eight GPUs. The same demand without the data finds them in the same plan.
    let refusal = explain::unservable(&federation.state, &reading(8, ""), federation.state.log_time).unwrap();
    assert_eq!(refusal.code, Code::Unservable);
    let (reads, reads_not) = (federation.submit(reading(8, "")), federation.submit(plain(8)));
    let placed: Vec<_> =
        Planner::default().plan(&federation.state, 10).placements.iter().map(|placed| placed.request).collect();
    assert!(placed.contains(&reads_not) && !placed.contains(&reads), "{placed:?}");
}

#[test]
fn a_purpose_is_refused_unless_the_federation_and_the_dataset_know_it() {
    let mut federation = Federation::ready();
    federation.with_data("purposes: [research, teaching]", &dataset(", purposes: [research]"));
    for (purpose, text) in [
        ("", "dataset `scans` may be read for research only, and the request states no purpose (purpose-not-allowed;"),
        ("teaching", "dataset `scans` may be read for research only, not for teaching"),
        ("reserch", "`reserch` is not a purpose of this federation"),
    ] {
        let refusal = refusal_of(&mut federation, reading(1, purpose));
        assert_eq!(
            (refusal.code, refusal.field.as_str(), refusal.value.as_str()),
            (Code::PolicyDenied, "spec.purpose", purpose)
        );
        assert!(refusal.reason.contains(text) && refusal.reason.contains("all.yaml:"), "{refusal}");
    }
    let other = RequestSpec { purpose: "teaching".to_owned(), ..plain(1) };
    assert!(explain::quote(&federation.state, &other).earliest.is_some());
    federation.with_data("datasets: declared-only", "");
    let refusal = refusal_of(&mut federation, reading(1, ""));
    assert_eq!((refusal.field.as_str(), refusal.value.as_str()), ("spec.data", "scans"));
}

#[test]
fn a_placement_and_a_renewal_follow_the_dataset_of_the_moment() {
    let mut federation = Federation::ready();
    federation.also(&dataset(", mayGoTo: {institutions: [lenders]}"));
    let (_, lease) = federation.running(reading(1, ""));
    let donor = federation.state.leases[&lease].placement.donor.to_string();
    let waiting = federation.submit(reading(1, ""));
    let placements = Planner::default().plan(&federation.state, 10).placements;
    assert_eq!(placements.len(), 1);
    federation.also(&dataset(", onWithdrawal: stop"));
    let applied = federation.ok(Command::PlaceRequests(PlaceRequests { placements }));
    assert!(format!("{:?}", applied.reply).contains("may not go to"), "{:?}", applied.reply);
    assert!(federation.state.requests[&waiting].lease.is_none());
    let renewal = RenewLease { lease, duration: Millis(60_000), may_shorten: true };
    let refusal = federation.refused(Command::RenewLease(renewal));
    assert!(refusal.reason.contains(&format!("dataset `scans` may not go to `{donor}`")), "{refusal}");
    let due = Reclaimer::default().due_reclaims(&federation.state, federation.state.log_time);
    let stop = ReclaimReason::PolicyChanged { code: "dataset-not-allowed".into(), treatment: LeaseTreatment::Stop };
    assert_eq!(due.iter().map(|due| (due.lease, due.reason.clone())).collect::<Vec<_>>(), [(lease, stop)]);
}

#[test]
fn a_template_without_data_is_no_way_around_a_dataset() {
    let mut federation = Federation::ready();
    let template = "apiVersion: policy.comity.dev/v1\nkind: RequestTemplate\nmetadata: {name: four}\n\
                    spec: {title: T, request: {gpus: {class: big, amount: 4}}}\n---\n";
    let named = |federation: &Federation, spec: &RequestSpec| -> Vec<String> {
        let found = explain::alternatives(&federation.state, spec, federation.state.log_time, None);
        found.iter().map(|it| format!("{} at {}", it.template, it.donors[0])).collect()
    };
    federation.also(&format!("{template}{}", dataset(", mayGoTo: {clusters: [north]}")));
    assert_eq!(named(&federation, &plain(30)), ["four at south"]);
    assert_eq!(named(&federation, &reading(30, "")), ["four at north"]);
    federation.also(&format!("{template}{}", dataset("")));
    assert_eq!(named(&federation, &reading(30, "")), [""; 0]);
}
