//! Warnings of policy's rules about a request.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::compile_selector;
use comity_types::{ClassName, ClusterId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::state::State;

/// What rules of policy warn of at any donor that may serve `spec`, each text once.
#[must_use]
pub fn rule_warnings(state: &State, spec: &RequestSpec) -> Vec<String> {
    let Some(snapshot) = Snapshot::new(state) else { return Vec::new() };
    let permitted = donors(state, spec).filter(|donor| spec.allows(donor));
    let warnings: BTreeSet<String> = permitted.flat_map(|donor| warnings_at(&snapshot, spec, donor)).collect();
    warnings.into_iter().collect()
}

/// What rules of policy warn of at a donor, if they and its terms allow it to serve `spec`.
pub(crate) fn warnings_at(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> Vec<String> {
    if !snapshot.bundle.has_warnings() {
        return Vec::new();
    }
    let classes = classes_asked(snapshot.state, donor, spec);
    let of_class = |class| snapshot.rule_warnings(donor, PolicyQuery::of(spec, class, spec.least_milli()));
    let warnings: BTreeSet<String> = classes.iter().flat_map(of_class).collect();
    warnings.into_iter().collect()
}

/// The classes in which a donor could serve the request.
pub(crate) fn classes_asked(state: &State, donor: &ClusterId, spec: &RequestSpec) -> BTreeSet<ClassName> {
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => BTreeSet::from([class.clone()]),
        DeviceChoice::Selector(source) => {
            let counts = state.derived.device_counts.get(donor);
            let devices = counts.into_iter().flat_map(BTreeMap::keys);
            compile_selector(source).map_or_else(
                |_| BTreeSet::new(),
                |selector| {
                    devices.filter(|(_, facts)| selector.matches(facts)).map(|(class, _)| class.clone()).collect()
                },
            )
        }
    }
}
