//! Cluster: the terms on which a cluster lends. A cluster without this document borrows only.

use std::collections::BTreeSet;

use comity_types::{Delivery, LeaseTreatment};
use serde::Serialize;

use super::on_withdrawal::read_on_withdrawal;
use super::parties::{Parties, include};
use super::{ReclaimLimit, Spec, When};
use crate::kind::Kind;
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// Words of a delivery.
pub(crate) const DELIVERIES: [(&str, Delivery); 2] =
    [("namespace", Delivery::Namespace), ("virtual-node", Delivery::VirtualNode)];

/// Donor terms; the document's name is the cluster's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// `institution`: its owner, who must list it in `clusters`.
    pub institution: String,
    /// `region`: its region, by the federation's own region names.
    pub region: Option<String>,
    /// `accepting`: whether it takes new leases; with `false`, current leases run until they end.
    pub accepting: bool,
    /// `lends`: its lending terms. A lease needs one term that covers it.
    pub lends: Vec<LendTerm>,
    /// `maxLentGpus`: most GPUs lent at a time, in milli-GPU; `None` for all that local work leaves free.
    pub max_lent_gpus_milli: Option<u64>,
    /// `localReserveGpus`: kept free for local work, in milli-GPU.
    pub local_reserve_gpus_milli: u64,
    /// `reclaimGrace`: notice before a reclaimed lease ends, in milliseconds.
    pub reclaim_grace_ms: Option<u64>,
    /// `onWithdrawal`: what becomes of its leases that its terms no longer cover, or that exceed `maxLentGpus`; drain by
    /// default.
    pub on_withdrawal: LeaseTreatment,
    /// `maxReclaims`: most of its leases reclaimed for local need or a preemption; `None` for the federation's default.
    pub max_reclaims: Option<ReclaimLimit>,
    /// `maxLeaseDuration`: the longest lease it grants, in milliseconds.
    pub max_lease_duration_ms: Option<u64>,
    /// `delivery`: the ways it can deliver a lease; `namespace` by default.
    pub delivery: BTreeSet<Delivery>,
    /// `nodeSharing`: which requests may share a node with others.
    pub node_sharing: NodeSharing,
}

/// `nodeSharing`: GPUs that the cluster lends by whole nodes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSharing {
    /// `nvlink`: for requests of several GPUs joined by NVLink; `any` by default.
    pub nvlink: NvLinkSharing,
}

/// How many GPUs of a node a request for NVLink-joined GPUs gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLinkSharing {
    /// The requested number.
    #[default]
    Any,
    /// All GPUs of the node, or none.
    WholeNodes,
}

/// One entry of `lends`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LendTerm {
    /// `classes`: the classes of GPUs this term covers.
    pub classes: BTreeSet<String>,
    /// `to.institutions`: the borrowers it covers. If `to_tenants` is empty too: everyone with an agreement.
    pub to_institutions: BTreeSet<String>,
    /// `to.tenants`: single tenants it covers.
    pub to_tenants: BTreeSet<String>,
    /// `maxGpus`: most GPUs lent at a time to the borrowers and in the classes of this term, in milli-GPU.
    pub max_gpus_milli: Option<u64>,
    /// `during` or `outside`: when it is in force; `None` for always.
    pub when: Option<When>,
}

impl LendTerm {
    /// Whether the term covers everyone with an agreement.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.to_institutions.is_empty() && self.to_tenants.is_empty()
    }

    /// Whether the term covers a tenant, by its own name or by its institution.
    #[must_use]
    pub fn covers(&self, tenant: &str, institution: &str) -> bool {
        include(&self.to_institutions, &self.to_tenants, tenant, institution)
    }
}

impl Spec for Cluster {
    const KIND: Kind = Kind::Cluster;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let institution = fields
            .required("institution", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Institution)));
        let region = fields.optional("region", reader).and_then(|(path, node)| reader.name(&path, node));
        let accepting = fields.optional("accepting", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let lends = fields
            .optional("lends", reader)
            .map(|(path, node)| reader.list(&path, node, read_lend_term))
            .unwrap_or_default();
        let max_lent = fields.optional("maxLentGpus", reader).and_then(|(path, node)| reader.gpus_milli(&path, node));
        let reserve =
            fields.optional("localReserveGpus", reader).and_then(|(path, node)| reader.gpus_milli(&path, node));
        let grace = fields.optional("reclaimGrace", reader).and_then(|(path, node)| reader.duration_ms(&path, node));
        let on_withdrawal = read_on_withdrawal(Self::KIND, fields, reader);
        let reclaims =
            fields.optional("maxReclaims", reader).and_then(|(path, node)| ReclaimLimit::read(&path, node, reader));
        let longest = fields
            .optional("maxLeaseDuration", reader)
            .and_then(|(path, node)| reader.positive_duration_ms(&path, node));
        let delivery = fields.optional("delivery", reader).map(|(path, node)| {
            reader.require_items(&path, node, "write `delivery: [namespace]`");
            reader.set(&path, node, |reader, path, node| reader.word(path, node, &DELIVERIES))
        });
        let sharing =
            fields.optional("nodeSharing", reader).and_then(|(path, node)| read_node_sharing(&path, node, reader));
        Some(Self {
            institution: institution?,
            region,
            accepting: accepting.unwrap_or(true),
            lends,
            max_lent_gpus_milli: max_lent,
            local_reserve_gpus_milli: reserve.unwrap_or(0),
            reclaim_grace_ms: grace,
            on_withdrawal,
            max_reclaims: reclaims,
            max_lease_duration_ms: longest,
            delivery: delivery.unwrap_or_else(|| BTreeSet::from([Delivery::Namespace])),
            node_sharing: sharing.unwrap_or_default(),
        })
    }
}

fn read_node_sharing(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<NodeSharing> {
    let mut fields = Fields::open(node, path, reader)?;
    let nvlink = fields.optional("nvlink", reader).and_then(|(path, node)| {
        let words = [("any", NvLinkSharing::Any), ("whole-nodes", NvLinkSharing::WholeNodes)];
        reader.word(&path, node, &words)
    });
    fields.finish(reader);
    Some(NodeSharing { nvlink: nvlink.unwrap_or_default() })
}

fn read_lend_term(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<LendTerm> {
    let mut fields = Fields::open(node, path, reader)?;
    let classes = fields.required("classes", reader).map(|(path, node)| {
        reader.require_items(&path, node, "name at least one GpuClass");
        reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::GpuClass)))
    });
    let to = fields.optional("to", reader).and_then(|(path, node)| Parties::read(&path, node, reader));
    let max = fields.optional("maxGpus", reader).and_then(|(path, node)| reader.gpus_milli(&path, node));
    let when = When::read(&mut fields, reader);
    fields.finish(reader);
    let to = to.unwrap_or_default();
    Some(LendTerm {
        classes: classes?,
        to_institutions: to.institutions,
        to_tenants: to.tenants,
        max_gpus_milli: max,
        when,
    })
}
