//! Federation: trust domain, maintainers, defaults and limits. A bundle has exactly one.

use std::collections::BTreeSet;

use serde::Serialize;

use super::commit_key::read_maintainer_keys;
use super::{MaintainerKey, ReclaimLimit, Signatures, Spec};
use crate::kind::Kind;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::identifiers;

pub use federation_data::FederationData;

mod federation_data;

/// Settings of the whole federation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Federation {
    /// The SPIFFE trust domain of all identities.
    pub trust_domain: String,
    /// Users with the federation role `admin`: they invite users and any cluster, and apply policy.
    pub maintainers: BTreeSet<String>,
    /// Users who may invite brokers, and with that hand out the federation's authority. Only they may add others.
    pub broker_operators: BTreeSet<String>,
    /// Users who may plan policy, as a pipeline does, and change nothing.
    pub planners: BTreeSet<String>,
    /// `commitKeys`: the keys with which maintainers sign commits.
    pub commit_keys: Vec<MaintainerKey>,
    /// `signatures`: whether only signed commits change the policy.
    pub signatures: Signatures,
    /// `data`: what requests may say about the data that they read.
    pub data: FederationData,
    /// Values for fields that documents and requests leave out.
    pub defaults: Defaults,
    /// Bounds on every request and on the queue.
    pub limits: Limits,
}

/// Values where documents and requests name none; durations in milliseconds. Comments end with the value of a bundle
/// that sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Defaults {
    /// `leaseTerm`: duration of a lease whose request names none. 4 h.
    pub lease_term_ms: u64,
    /// `hold`: how long a placement waits for its peering. 2 min.
    pub hold_ms: u64,
    /// `peeringIdle`: how long a peering without leases stays warm. 15 min.
    pub peering_idle_ms: u64,
    /// `peeringStep`: the deadline of each step of a peering. 30 s.
    pub peering_step_ms: u64,
    /// `outageGrace`: how long leases outlive their expiry while no broker can be reached. 24 h.
    pub outage_grace_ms: u64,
    /// `heartbeatTimeout`: silence after which an agent is suspect. 30 s.
    pub heartbeat_timeout_ms: u64,
    /// `donorLostAfter`: silence after which a donor counts as lost and its leases are reclaimed. 30 min.
    pub donor_lost_after_ms: u64,
    /// `reclaimGrace`: notice before a reclaimed lease ends, where a cluster names none. 5 min.
    pub reclaim_grace_ms: u64,
    /// `reserveAfter`: how long a request waits before capacity is reserved for it. 1 h.
    pub reserve_after_ms: u64,
    /// `usageHalfLife`: time in which past usage loses half its weight in the order of the queue. 1 d.
    pub usage_half_life_ms: u64,
    /// `maxReclaims`: most leases of a donor reclaimed for local need or a preemption, where its Cluster document names
    /// none. No limit.
    pub max_reclaims: Option<ReclaimLimit>,
}

impl Default for Defaults {
    fn default() -> Self {
        const SECOND: u64 = 1_000;
        const HOUR: u64 = 3_600 * SECOND;
        Self {
            lease_term_ms: 4 * HOUR,
            hold_ms: 120 * SECOND,
            peering_idle_ms: 900 * SECOND,
            peering_step_ms: 30 * SECOND,
            outage_grace_ms: 24 * HOUR,
            heartbeat_timeout_ms: 30 * SECOND,
            donor_lost_after_ms: 1_800 * SECOND,
            reclaim_grace_ms: 300 * SECOND,
            reserve_after_ms: HOUR,
            usage_half_life_ms: 24 * HOUR,
            max_reclaims: None,
        }
    }
}

/// Federation-wide bounds. Comments end with the value of a bundle that sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// `maxGpusPerRequest`, in milli-GPU. 64 GPUs.
    pub max_gpus_per_request_milli: u64,
    /// `maxLeaseDuration`, in milliseconds. 7 d.
    pub max_lease_duration_ms: u64,
    /// `maxQueuedRequests`: most waiting requests in the federation. 10,000.
    pub max_queued_requests: u64,
    /// `maxQueuedRequestsPerInstitution`: most waiting requests of an institution's tenants. A fifth of the
    /// federation's, so that none fills the queue.
    pub max_queued_requests_per_institution: u64,
    /// `maxQueuedRequestsPerTenant`: most waiting requests per tenant. 200.
    pub max_queued_requests_per_tenant: u64,
    /// `idleRelease`: idle time after which a lease is released, in milliseconds. None.
    pub idle_release_ms: Option<u64>,
    /// `maxReclaimsPerTenant`: most leases of a tenant reclaimed for local need or a preemption. No limit.
    pub max_reclaims_per_tenant: Option<ReclaimLimit>,
}

/// The form of a trust domain, for editors.
const TRUST_DOMAIN: &str = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$";

/// Where policy does not say, an institution may have the federation's waiting requests divided by this.
const INSTITUTION_DIVISOR: u64 = 5;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_gpus_per_request_milli: 64_000,
            max_lease_duration_ms: 7 * 24 * 3_600_000,
            max_queued_requests: 10_000,
            max_queued_requests_per_institution: 2_000,
            max_queued_requests_per_tenant: 200,
            idle_release_ms: None,
            max_reclaims_per_tenant: None,
        }
    }
}

impl Spec for Federation {
    const KIND: Kind = Kind::Federation;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let trust_domain = fields.required("trustDomain", reader).and_then(|(path, node)| {
            let text = reader.scalar_of_form(&path, node, TRUST_DOMAIN)?;
            if let Err(remedy) = identifiers::check_trust_domain(text) {
                let message = format!("`{path}: {}` is not a trust domain", shorten(text));
                reader.problems.at(node.place, ProblemCode::InvalidName, message, remedy);
                return None;
            }
            Some(text.to_owned())
        });
        let maintainers = fields.required("maintainers", reader).map(|(path, node)| {
            reader.require_items(&path, node, "name at least one user, or nobody can change anything");
            reader.set(&path, node, FieldReader::user_id)
        });
        let broker_operators = fields
            .optional("brokerOperators", reader)
            .map(|(path, node)| reader.set(&path, node, FieldReader::user_id))
            .unwrap_or_default();
        let planners = fields
            .optional("planners", reader)
            .map(|(path, node)| reader.set(&path, node, FieldReader::user_id))
            .unwrap_or_default();
        let commit_keys = fields
            .optional("commitKeys", reader)
            .map(|(path, node)| read_maintainer_keys(&path, node, reader))
            .unwrap_or_default();
        let signatures =
            fields.optional("signatures", reader).map(|(path, node)| Signatures::read(&path, node, reader));
        let data = fields.optional("data", reader).map(|(path, node)| FederationData::read(&path, node, reader));
        let defaults = fields.optional("defaults", reader).and_then(|(path, node)| {
            let mut fields = Fields::open(node, &path, reader)?;
            let defaults = read_defaults(&mut fields, reader);
            fields.finish(reader);
            Some(defaults)
        });
        let limits = fields.optional("limits", reader).and_then(|(path, node)| {
            let mut fields = Fields::open(node, &path, reader)?;
            let limits = read_limits(&mut fields, reader);
            fields.finish(reader);
            Some(limits)
        });
        Some(Self {
            trust_domain: trust_domain?,
            maintainers: maintainers?,
            broker_operators,
            planners,
            commit_keys,
            // What cannot be read must not become the default, which requires nothing.
            signatures: signatures.map_or(Some(Signatures::default()), |read| read)?,
            data: data.map_or(Some(FederationData::default()), |read| read)?,
            defaults: defaults.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
        })
    }
}

fn read_defaults(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Defaults {
    let mut defaults = Defaults::default();
    let targets: [(&'static str, &mut u64); 10] = [
        ("leaseTerm", &mut defaults.lease_term_ms),
        ("hold", &mut defaults.hold_ms),
        ("peeringIdle", &mut defaults.peering_idle_ms),
        ("peeringStep", &mut defaults.peering_step_ms),
        ("outageGrace", &mut defaults.outage_grace_ms),
        ("heartbeatTimeout", &mut defaults.heartbeat_timeout_ms),
        ("donorLostAfter", &mut defaults.donor_lost_after_ms),
        ("reclaimGrace", &mut defaults.reclaim_grace_ms),
        ("reserveAfter", &mut defaults.reserve_after_ms),
        ("usageHalfLife", &mut defaults.usage_half_life_ms),
    ];
    for (name, target) in targets {
        if let Some((path, node)) = fields.optional(name, reader)
            && let Some(ms) = reader.positive_duration_ms(&path, node)
        {
            *target = ms;
        }
    }
    defaults.max_reclaims =
        fields.optional("maxReclaims", reader).and_then(|(path, node)| ReclaimLimit::read(&path, node, reader));
    defaults
}

fn read_limits(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Limits {
    let mut limits = Limits::default();
    if let Some((path, node)) = fields.optional("maxGpusPerRequest", reader)
        && let Some(milli) = reader.positive_gpus_milli(&path, node)
    {
        limits.max_gpus_per_request_milli = milli;
    }
    if let Some((path, node)) = fields.optional("maxLeaseDuration", reader)
        && let Some(ms) = reader.positive_duration_ms(&path, node)
    {
        limits.max_lease_duration_ms = ms;
    }
    if let Some((path, node)) = fields.optional("maxQueuedRequests", reader)
        && let Some(count) = reader.number(&path, node, 1, 1_000_000)
    {
        limits.max_queued_requests = count;
    }
    limits.max_queued_requests_per_institution = limits.max_queued_requests.div_ceil(INSTITUTION_DIVISOR);
    if let Some((path, node)) = fields.optional("maxQueuedRequestsPerInstitution", reader)
        && let Some(count) = reader.number(&path, node, 1, 1_000_000)
    {
        limits.max_queued_requests_per_institution = count;
    }
    if let Some((path, node)) = fields.optional("maxQueuedRequestsPerTenant", reader)
        && let Some(count) = reader.number(&path, node, 1, 1_000_000)
    {
        limits.max_queued_requests_per_tenant = count;
    }
    limits.idle_release_ms =
        fields.optional("idleRelease", reader).and_then(|(path, node)| reader.idle_release_ms(&path, node));
    limits.max_reclaims_per_tenant = fields
        .optional("maxReclaimsPerTenant", reader)
        .and_then(|(path, node)| ReclaimLimit::read(&path, node, reader));
    limits
}
