//! The workloads' view of leases: pods that burst, custom resources, queues of Kueue, and notices of a reclaim.
//!
//! Each part has a pure plan and a shell that watches and executes it. It reads records, never writes them, and asks the
//! brokers only through [`burst::Requests`].

pub mod burst;
pub mod crd;
mod kueue;
mod lease_end;
pub mod lease_pods;
pub mod reclaim;
pub mod webhook;
