//! How pods run: from a manifest, its plan and the lease's share to containers, and the records of all of them.

mod admission;
mod container_maker;
mod container_status;
mod environment;
mod host_parts;
mod pod_book;
mod pod_host;
mod pod_plan;
mod pod_runner;

pub(crate) use self::container_maker::container_name;
pub(crate) use self::container_status::container_ref;
pub(crate) use self::pod_book::{BookError, ChangeKind, PodEntry, PodKey};
pub(crate) use self::pod_host::{PodHost, Refused};
pub(crate) use self::pod_plan::{MAX_GRACE, PodPlan};
