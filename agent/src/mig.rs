//! Cuts MIG devices as leases need them, by NVIDIA's MIG manager, and merges them back.
//!
//! The manager applies a named configuration of mig-parted to a whole node when the label `nvidia.com/mig.config`
//! changes. A configuration states for each device how many instances of each profile it has. mig-parted leaves devices
//! alone whose counts are right, and destroys all instances of any other device before it makes the new ones: it cannot
//! cut a part of a device. Source: NVIDIA/mig-parted, pkg/mig/config and pkg/mig/reconfigure.
//!
//! ```text
//! observe ── MigNode ──▶ mig_keeper ── MigBook ──▶ observe: layouts of the offer
//!                        ▲  │    │         └─────▶ prepare-lease: waits until its instances exist
//!   leases of the broker ┘  │    └ label, annotation, ConfigMap ──▶ MIG manager ──▶ node
//!                           └ node_plan: pure
//! ```
//!
//! **What is known.** The node's label names a configuration of the ConfigMap, which gives the counts of each device.
//! The agent believes it only while the manager reports `success` and the node counts just these instances. Slots are
//! the agent's own: neither label nor device plugin shows them, and one instance of a profile is as good as another.
//! `device_layout` places the counts so that each lease's instances start where the broker placed them.
//!
//! **Which device is empty.** The device plugin counts by profile, so nobody sees which device a pod holds. A device is
//! empty if no pod of the node, local or lent, uses any profile that the device has. It may be cut if, in addition, no
//! lease holds one of its instances, and if the instances of the other devices still cover all leases. So a pod on one
//! device keeps all devices with that profile from being cut: too careful, never too bold.
//!
//! **Order.** One task plans all nodes, and each node has at most one change under way; leases of one node that wait
//! together are cut together. Right before a change the pods of the node are listed again.
//!
//! - `device_layout`: the instances of a device and where they start
//! - `mig_config`: mig-parted's configurations, and the agent's own among them
//! - `node_plan`: the next step of one node; `node_change`: a change under way; `supply`: which leases are served
//! - `mig_keeper`: carries steps out; `mig_book`: what it knows

pub(crate) mod device_layout;
pub mod mig_book;
pub(crate) mod mig_config;
pub mod mig_keeper;
pub(crate) mod mig_node;
pub mod mig_settings;
pub(crate) mod node_change;
pub(crate) mod node_memory;
pub(crate) mod node_plan;
pub(crate) mod node_state;
pub(crate) mod supply;
