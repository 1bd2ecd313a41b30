//! The nodes of a cluster, as its offer describes them.

use std::sync::Arc;

use comity_proto::v1::Node;

/// The latest nodes, ordered by id; `None` before the first complete list.
pub type Nodes = Option<Arc<Vec<Node>>>;
