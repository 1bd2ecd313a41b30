//! Facts about this host, for a first configuration: whether it is part of Kubernetes, its CPUs and memory, its GPUs.

pub mod found_gpus;
pub mod host_inventory;
pub mod machine;
pub mod platform;
