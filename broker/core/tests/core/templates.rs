//! Request templates that are named in place of a request that is refused or would wait.

use comity_core::demand::{RequestSpec, Share};
use comity_core::{Millis, explain};
use comity_types::Delivery;

use super::federation::{Federation, cluster, spec};
use super::reclaim::at;

/// Documents of templates: name, and the rest of its `spec`.
fn templates(all: &[(&str, &str)]) -> String {
    let each = all.iter().map(|(name, rest)| {
        format!(
            "apiVersion: policy.comity.dev/v1\nkind: RequestTemplate\nmetadata: {{name: {name}}}\n\
             spec: {{title: T, {rest}}}\n"
        )
    });
    each.collect::<Vec<_>>().join("---\n")
}

fn named(federation: &Federation, spec: &RequestSpec, sooner: bool) -> Vec<String> {
    let now = federation.state.log_time;
    let earliest = sooner.then(|| explain::quote(&federation.state, spec).earliest).flatten();
    let found = explain::alternatives(&federation.state, spec, now, earliest.map(|(earliest, _)| earliest));
    found
        .into_iter()
        .map(|it| format!("{} in {} ms at {}", it.template, it.earliest.since(now).0, it.donors[0]))
        .collect()
}

#[test]
fn the_nearest_templates_that_could_start_are_named() {
    let mut federation = Federation::ready();
    federation.also(&templates(&[
        ("eight", "request: {gpus: {class: big, amount: 8}}"),
        ("four", "request: {gpus: {class: big, amount: 4}, duration: 2h}"),
        ("four-hour", "request: {gpus: {class: big, amount: 4}, duration: 30m}"),
        ("huge", "request: {gpus: {class: big, amount: 40}}"),
        ("node", "request: {gpus: {class: big, amount: 8}, delivery: virtual-node}"),
        ("not-yours", "request: {gpus: {class: big, amount: 8}}, offeredTo: {institutions: [lenders]}"),
        ("one", "request: {gpus: {class: big, amount: 1}}"),
        ("one-gib", "request: {gpus: {class: small, amount: 1}}"),
    ]));
    let refused = spec(30, Share::Whole, "big");
    assert!(explain::unservable(&federation.state, &refused, federation.state.log_time).is_some());
    // Nearest by GPUs first, then by duration; nobody could serve `huge` and the class of `one-gib`.
    let expected = ["eight in 0 ms at north", "four-hour in 0 ms at south", "four in 0 ms at south"];
    assert_eq!(named(&federation, &refused, false), expected);
    let by_node = RequestSpec { delivery: Delivery::VirtualNode, ..refused.clone() };
    assert_eq!(named(&federation, &by_node, false), ["node in 0 ms at north"]);
    // Not the template itself.
    let mut from_eight = refused;
    from_eight.template = Some("eight".parse().unwrap());
    assert!(!named(&federation, &from_eight, false).iter().any(|it| it.starts_with("eight")));
}

#[test]
fn a_request_that_waits_is_told_of_templates_that_start_sooner() {
    let mut federation = Federation::ready();
    federation.also(&templates(&[
        ("four", "request: {gpus: {class: big, amount: 4}}"),
        ("one", "request: {gpus: {class: big, amount: 1}}"),
    ]));
    federation.submit(at("north", spec(16, Share::Whole, "big")));
    federation.submit(at("south", spec(3, Share::Whole, "big")));
    assert_eq!(federation.place().len(), 2);
    let mut waits = spec(2, Share::Whole, "big");
    waits.duration = federation.state.settings().lease_term;
    assert!(explain::quote(&federation.state, &waits).placements.is_empty());
    assert_eq!(named(&federation, &waits, true), ["one in 0 ms at south"]);
    assert_eq!(named(&federation, &waits, false).len(), 2);
}

#[test]
fn alternatives_keep_the_donors_and_the_start_window_of_the_request() {
    let mut federation = Federation::ready();
    federation.also(&templates(&[
        ("eight", "request: {gpus: {class: big, amount: 8}}"),
        ("four", "request: {gpus: {class: big, amount: 4}}"),
    ]));
    let refused = spec(30, Share::Whole, "big");
    assert_eq!(named(&federation, &refused, false), ["eight in 0 ms at north", "four in 0 ms at south"]);
    let not_south = RequestSpec { deny_donors: vec![cluster("south")], ..refused.clone() };
    assert_eq!(named(&federation, &not_south, false), ["eight in 0 ms at north", "four in 0 ms at north"]);
    let only_south = RequestSpec { allow_donors: vec![cluster("south")], ..refused.clone() };
    assert_eq!(named(&federation, &only_south, false), ["four in 0 ms at south"]);
    let now = federation.state.log_time;
    let tomorrow = RequestSpec { not_before: Some(now.after(Millis::from_hours(24))), ..refused.clone() };
    assert_eq!(named(&federation, &tomorrow, false), ["eight in 86400000 ms at north", "four in 86400000 ms at south"]);
    // While all GPUs are lent for an hour, no alternative helps who must start within ten minutes.
    federation.submit(at("north", spec(16, Share::Whole, "big")));
    federation.submit(at("south", spec(4, Share::Whole, "big")));
    assert_eq!(federation.place().len(), 2);
    assert_eq!(named(&federation, &refused, false).len(), 2);
    let soon = RequestSpec { start_by: Some(now.after(Millis::from_mins(10))), ..refused };
    assert_eq!(named(&federation, &soon, false), [""; 0]);
}

#[test]
fn only_the_eight_nearest_are_tried() {
    let mut federation = Federation::ready();
    let far: Vec<(String, String)> = (30..38)
        .map(|gpus| (format!("t{gpus}"), format!("request: {{gpus: {{class: big, amount: {gpus}}}}}")))
        .collect();
    let mut all: Vec<(&str, &str)> = far.iter().map(|(name, rest)| (name.as_str(), rest.as_str())).collect();
    all.push(("one", "request: {gpus: {class: big, amount: 1}}"));
    federation.also(&templates(&all));
    assert_eq!(named(&federation, &spec(30, Share::Whole, "big"), false), [""; 0]);
    federation.also(&templates(&all[1..]));
    assert_eq!(named(&federation, &spec(30, Share::Whole, "big"), false), ["one in 0 ms at south"]);
}
