//! The core through its public interface: whole scenarios, the scheduler's choices, determinism.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "core/advance_reservations.rs"]
mod advance_reservations;
#[path = "core/audit.rs"]
mod audit;
#[path = "core/batch.rs"]
mod batch;
#[path = "core/bounds.rs"]
mod bounds;
#[path = "core/boxes.rs"]
mod boxes;
#[path = "core/chains.rs"]
mod chains;
#[path = "core/choices.rs"]
mod choices;
#[path = "core/cohorts.rs"]
mod cohorts;
#[path = "core/copies.rs"]
mod copies;
#[path = "core/datasets.rs"]
mod datasets;
#[path = "core/determinism.rs"]
mod determinism;
#[path = "core/drains.rs"]
mod drains;
#[path = "core/failures.rs"]
mod failures;
#[path = "core/federation.rs"]
mod federation;
#[path = "core/forged_reports.rs"]
mod forged_reports;
#[path = "core/formats.rs"]
mod formats;
#[path = "core/functions.rs"]
mod functions;
#[path = "core/gangs.rs"]
mod gangs;
#[path = "core/gpu_hours.rs"]
mod gpu_hours;
#[path = "core/gpu_types.rs"]
mod gpu_types;
#[path = "core/handshake.rs"]
mod handshake;
#[path = "core/idle.rs"]
mod idle;
#[path = "core/invitations.rs"]
mod invitations;
#[path = "core/inviters.rs"]
mod inviters;
#[path = "core/late_commands.rs"]
mod late_commands;
#[path = "core/mig.rs"]
mod mig;
#[path = "core/migration.rs"]
mod migration;
#[path = "core/moved_members.rs"]
mod moved_members;
#[path = "core/near.rs"]
mod near;
#[path = "core/origin_refusals.rs"]
mod origin_refusals;
#[path = "core/policy_changes.rs"]
mod policy_changes;
#[path = "core/policy_plans.rs"]
mod policy_plans;
#[path = "core/policy_sources.rs"]
mod policy_sources;
#[path = "core/queue.rs"]
mod queue;
#[path = "core/reasons.rs"]
mod reasons;
#[path = "core/reclaim.rs"]
mod reclaim;
#[path = "core/reclaim_limits.rs"]
mod reclaim_limits;
#[path = "core/reclaim_minimum.rs"]
mod reclaim_minimum;
#[path = "core/reclaims.rs"]
mod reclaims;
#[path = "core/refusals.rs"]
mod refusals;
#[path = "core/repeated_revocations.rs"]
mod repeated_revocations;
#[path = "core/replaced_agents.rs"]
mod replaced_agents;
#[path = "core/reserved_windows.rs"]
mod reserved_windows;
#[path = "core/revisions.rs"]
mod revisions;
#[path = "core/revocations.rs"]
mod revocations;
#[path = "core/rules.rs"]
mod rules;
#[path = "core/schedules.rs"]
mod schedules;
#[path = "core/spread.rs"]
mod spread;
#[path = "core/templates.rs"]
mod templates;
#[path = "core/time.rs"]
mod time;
#[path = "core/topology.rs"]
mod topology;
#[path = "core/unservable.rs"]
mod unservable;
#[path = "core/user_requests.rs"]
mod user_requests;
#[path = "core/withdrawals.rs"]
mod withdrawals;
