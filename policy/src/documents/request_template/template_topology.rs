//! `topology` of a template.

use serde::Serialize;

use crate::limits::MAX_TEMPLATE_RDMA_GBITS;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// How the shares lie relative to one another. A field that is `false`, `None` or 0 is left open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTopology {
    /// `sameNode`.
    pub same_node: bool,
    /// `wholeNode`.
    pub whole_node: bool,
    /// `nvlink`.
    pub nvlink: Option<TemplateNvLink>,
    /// `numa: aligned`.
    pub numa_aligned: bool,
    /// `rdmaGbits`: Gbit/s per node.
    pub rdma_gbits: u32,
    /// `spreadNodes`.
    pub spread_nodes: bool,
}

/// NVLink between the GPUs of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TemplateNvLink {
    /// Prefers it.
    Preferred,
    /// Requires it.
    Required,
}

impl TemplateTopology {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let same_node = read_flag("sameNode", &mut fields, reader);
        let whole_node = read_flag("wholeNode", &mut fields, reader);
        let nvlink = fields.optional("nvlink", reader).and_then(|(path, node)| {
            let words = [("preferred", TemplateNvLink::Preferred), ("required", TemplateNvLink::Required)];
            reader.word(&path, node, &words)
        });
        let numa =
            fields.optional("numa", reader).and_then(|(path, node)| reader.word(&path, node, &[("aligned", ())]));
        let rdma = fields
            .optional("rdmaGbits", reader)
            .and_then(|(path, node)| reader.number(&path, node, 1, u64::from(MAX_TEMPLATE_RDMA_GBITS)));
        let spread_nodes = read_flag("spreadNodes", &mut fields, reader);
        if spread_nodes && (same_node || whole_node) {
            let path = fields.path_of("spreadNodes");
            let message = format!("`{path}` of {} contradicts `sameNode` and `wholeNode`", reader.label);
            reader.problems.at(node.place, ProblemCode::Contradiction, message, "leave one of them out");
        }
        fields.finish(reader);
        let rdma_gbits = rdma.and_then(|gbits| u32::try_from(gbits).ok()).unwrap_or(0);
        Some(Self { same_node, whole_node, nvlink, numa_aligned: numa.is_some(), rdma_gbits, spread_nodes })
    }
}

/// A field that is `true` or left out.
pub(in crate::documents) fn read_flag(
    name: &'static str,
    fields: &mut Fields<'_>,
    reader: &mut FieldReader<'_, '_>,
) -> bool {
    let Some((path, node)) = fields.optional(name, reader) else { return false };
    reader.boolean(&path, node).unwrap_or(false)
}
