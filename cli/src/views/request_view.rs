//! Requests and their states, and the templates that requests are made from.

mod template_view;

use comity_proto::v1;
use comity_types::Delivery;
use serde::Serialize;

use super::list::Row;
use super::quota_use::{QuotaUse, quotas_table};
use super::spec::{DataNeed, Preemptible, RequestSpec};
use super::value::{Known, non_empty, non_zero};
use crate::output::{Answer, Column, Sheet, fields};
use crate::units::{age, format_cpu, format_duration, format_memory};

pub use template_view::RequestTemplate;

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestState {
    /// A state that this version of `comity` does not know.
    Unknown,
    /// Valid but not submitted: the answer to a dry run.
    NotSubmitted,
    /// It waits for a donor.
    Queued,
    /// It has a lease.
    Placed,
    /// Its lease ended as planned.
    Completed,
    /// The caller cancelled it.
    Cancelled,
    /// It could not be served.
    Failed,
}

impl RequestState {
    /// The JSON value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NotSubmitted => "not-submitted",
            Self::Queued => "queued",
            Self::Placed => "placed",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// Whether it will never change again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Failed)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// "req-N"; none for a dry run.
    pub id: Option<String>,
    /// Requested GPUs and conditions.
    pub spec: RequestSpec,
    /// Current state.
    pub state: RequestState,
    /// Its current or last lease.
    pub lease: Option<String>,
    /// All leases that it has now; a gang may have several.
    pub leases: Vec<String>,
    /// When it was submitted.
    pub submitted_at_ms: Option<u64>,
    /// Who submitted it.
    pub submitted_by: Option<String>,
    /// Number of placements tried.
    pub attempts: u32,
    /// When it is tried again, after donors that had failed it failed it again.
    pub retry_at_ms: Option<u64>,
    /// Times that a lease of it was reclaimed.
    pub reclaims: u32,
    /// Type of GPUs that its next leases must have.
    pub gpu_type: Option<String>,
    /// Reason for its state.
    pub message: Option<String>,
    /// After a dry run: limits of quotas that it counts against.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
    /// Revision of its last change.
    pub revision: u64,
}

impl From<v1::Request> for Request {
    fn from(request: v1::Request) -> Self {
        let state = match request.state() {
            v1::RequestState::Unspecified if request.id.is_empty() => RequestState::NotSubmitted,
            v1::RequestState::Unspecified => RequestState::Unknown,
            v1::RequestState::Queued => RequestState::Queued,
            v1::RequestState::Placed => RequestState::Placed,
            v1::RequestState::Completed => RequestState::Completed,
            v1::RequestState::Cancelled => RequestState::Cancelled,
            v1::RequestState::Failed => RequestState::Failed,
        };
        Self {
            id: non_empty(request.id),
            spec: request.spec.into(),
            state,
            lease: non_empty(request.lease),
            leases: request.leases,
            submitted_at_ms: non_zero(request.submitted_at_ms),
            submitted_by: non_empty(request.submitted_by),
            attempts: request.attempts,
            retry_at_ms: non_zero(request.retry_at_ms),
            reclaims: request.reclaims,
            gpu_type: non_empty(request.gpu_type),
            message: non_empty(request.message),
            quotas: Vec::new(),
            revision: request.revision,
        }
    }
}

impl Row for Request {
    const HEADS: &'static [Column] = &[
        Column::text("request"),
        Column::text("tenant").rank(2),
        Column::text("origin").rank(4),
        Column::text("gpus"),
        Column::text("delivery").rank(6),
        Column::text("duration").rank(5),
        Column::state("state"),
        Column::text("lease").rank(1),
        Column::text("submitted").rank(3),
        Column::message("message").rank(7),
    ];
    const NONE: &'static str = "no requests";

    fn key(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    fn rows(&self, now_ms: u64) -> Vec<Vec<String>> {
        vec![vec![
            self.id.clone().unwrap_or_else(|| "(dry run)".to_owned()),
            self.spec.tenant.clone(),
            self.spec.origin.clone(),
            self.spec.gpus_summary(),
            self.spec.delivery.to_string(),
            duration_text(self.spec.duration_ms),
            self.state.as_str().to_owned(),
            self.leases_text().unwrap_or_else(|| "-".to_owned()),
            age(self.submitted_at_ms.unwrap_or(0), now_ms),
            self.message.clone().unwrap_or_default(),
        ]]
    }
}

impl Request {
    /// Its leases, or its last one.
    fn leases_text(&self) -> Option<String> {
        if self.leases.len() > 1 { Some(self.leases.join(", ")) } else { self.lease.clone() }
    }

    /// Its state; for a dry run also the command that tells more.
    fn state_text(&self) -> String {
        match self.state {
            RequestState::NotSubmitted => {
                "not-submitted ('comity quote' with the same flags shows where and when it would start)".to_owned()
            }
            state => state.as_str().to_owned(),
        }
    }

    /// Its delivery with an explanation.
    fn delivery_text(&self) -> String {
        let how = match self.spec.delivery {
            Known::Value(Delivery::VirtualNode) => "pods of the namespace below run on a virtual node in your cluster",
            Known::Value(Delivery::Namespace) => {
                "a kubeconfig for a namespace on the donor, in a Secret in the namespace below"
            }
            Known::Unknown => "this client is older than the broker",
        };
        format!("{} ({how})", self.spec.delivery)
    }
}

impl Answer for Request {
    fn table(&self, now_ms: u64) -> Sheet {
        let spec = &self.spec;
        let rdma = spec.topology.rdma_gbits;
        let together = match (spec.topology.same_node, spec.topology.whole_node, spec.spread_donors) {
            (false, false, false) if spec.topology.spread_nodes => "as many nodes of one donor as have room",
            (false, false, true) if spec.topology.spread_nodes => {
                "as many nodes as have room, of several donors if one has too few"
            }
            (_, true, false) => "whole nodes",
            (_, true, true) => "whole nodes, of several donors if one has too few",
            (true, false, _) => "one node",
            (false, false, false) => "any nodes of one donor",
            (false, false, true) => "any nodes, of several donors if one has too few",
        };
        let members = spec.members.map_or_else(String::new, |members| {
            if members.min == members.desired {
                format!("{}, each on one node", members.min)
            } else {
                format!("{} to {}, each on one node", members.min, members.desired)
            }
        });
        let per_gpu = |cpu: u64, memory: u64| {
            if cpu == 0 && memory == 0 {
                String::new()
            } else {
                format!("{} CPU, {} memory", format_cpu(cpu), format_memory(memory))
            }
        };
        let shown = fields(&[
            ("Request", self.id.clone().unwrap_or_else(|| "(dry run)".to_owned())),
            ("State", self.state_text()),
            ("Message", self.message.clone().unwrap_or_default()),
            ("Lease", self.leases_text().unwrap_or_default()),
            ("Tenant", spec.tenant.clone()),
            ("Origin", spec.origin.clone()),
            ("Template", spec.template.clone().unwrap_or_default()),
            ("GPUs", spec.gpus_summary()),
            ("Selector", spec.gpus.selector.clone().unwrap_or_default()),
            ("Per GPU", per_gpu(spec.gpus.cpu_milli_per_gpu, spec.gpus.memory_mib_per_gpu)),
            ("Isolation", spec.gpus.isolation.unwrap_or_default().to_owned()),
            ("Members", members),
            ("Together", together.to_owned()),
            ("NVLink", spec.topology.nvlink.unwrap_or_default().to_owned()),
            ("NUMA", spec.topology.numa.unwrap_or_default().to_owned()),
            ("RDMA", if rdma == 0 { String::new() } else { format!("{rdma} Gbit/s per node, if there are several") }),
            ("Data", data_text(&spec.data)),
            ("Purpose", spec.purpose.clone().unwrap_or_default()),
            ("Duration", duration_text(spec.duration_ms)),
            ("Priority", spec.priority.clone().unwrap_or_default()),
            ("Start after", start_text(spec.not_before_ms, now_ms)),
            ("Start by", start_text(spec.start_by_ms, now_ms)),
            ("Release idle", release_idle_text(spec.release_idle_ms)),
            ("Preemptible", spec.preemptible.map(Preemptible::summary).unwrap_or_default()),
            ("Checkpoints", spec.checkpoint_secret.as_ref().map(|name| format!("Secret {name}")).unwrap_or_default()),
            ("Donors", spec.allow_donors.join(", ")),
            ("Not donors", spec.deny_donors.join(", ")),
            ("Delivery", self.delivery_text()),
            ("Namespace", spec.target_namespace.clone().unwrap_or_default()),
            ("Note", spec.note.clone().unwrap_or_default()),
            ("Submitted", age(self.submitted_at_ms.unwrap_or(0), now_ms)),
            ("By", self.submitted_by.clone().unwrap_or_default()),
            ("Attempts", self.attempts.to_string()),
            ("Tried again", start_text(self.retry_at_ms.unwrap_or_default(), now_ms)),
            ("Reclaims", if self.reclaims == 0 { String::new() } else { self.reclaims.to_string() }),
            ("GPU type", self.gpu_type.clone().unwrap_or_default()),
        ]);
        if self.quotas.is_empty() { shown } else { shown.gap().then(quotas_table(&self.quotas)) }
    }
}

/// For people: `150Gi of imagenet-1k, 2Gi of weights`.
fn data_text(needs: &[DataNeed]) -> String {
    let each = needs.iter().map(|need| format!("{} of {}", format_memory(need.mib), need.dataset));
    each.collect::<Vec<_>>().join(", ")
}

fn start_text(ms: u64, now_ms: u64) -> String {
    if ms == 0 { String::new() } else { age(ms, now_ms) }
}

fn release_idle_text(ms: u64) -> String {
    if ms == 0 { String::new() } else { format!("after {}", format_duration(ms)) }
}

fn duration_text(ms: u64) -> String {
    if ms == 0 { "default".to_owned() } else { format_duration(ms) }
}
