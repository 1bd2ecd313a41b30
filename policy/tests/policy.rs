//! The public interface of the policy crate.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "policy/bundle.rs"]
mod bundle;
#[path = "policy/changes.rs"]
mod changes;
#[path = "policy/cohorts.rs"]
mod cohorts;
#[path = "policy/commit_keys.rs"]
mod commit_keys;
#[path = "policy/datasets.rs"]
mod datasets;
#[path = "policy/edits.rs"]
mod edits;
#[path = "policy/fuzz.rs"]
mod fuzz;
#[path = "policy/gpu_hours.rs"]
mod gpu_hours;
#[path = "policy/properties.rs"]
mod properties;
#[path = "policy/reclaims.rs"]
mod reclaims;
#[path = "policy/reservations.rs"]
mod reservations;
#[path = "policy/rules.rs"]
mod rules;
#[path = "policy/schedules.rs"]
mod schedules;
#[path = "policy/schemas.rs"]
mod schemas;
#[path = "policy/templates.rs"]
mod templates;
#[path = "policy/warnings.rs"]
mod warnings;
#[path = "policy/withdrawals.rs"]
mod withdrawals;
