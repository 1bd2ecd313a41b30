//! Tests of the clusters: they start, behave like Kubernetes and leave nothing behind.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "clusters/cel.rs"]
mod cel;
#[path = "clusters/control_plane.rs"]
mod control_plane;
#[path = "clusters/left_behind.rs"]
mod left_behind;
#[path = "clusters/liqo.rs"]
mod liqo;
#[path = "clusters/real.rs"]
mod real;
