//! Routes pods of all nodes to the tunnels of the gateway node.
//!
//! ```text
//! Node objects ─▶ gateway ─▶ fabric (vxlan, routes, firewall)
//!                    │ ConfigMap comity-fabric
//!                    ▼
//!                  follower (comity-agent node) ─▶ NodeOverlay, on each other node
//! ```

pub mod follower;
pub mod gateway;

/// Name of the ConfigMap, in the agent's namespace.
pub const CONFIG_MAP: &str = "comity-fabric";
/// Key of the document in it.
pub const KEY: &str = "fabric.json";
