//! The port inside tunnels that leads to the donor's API.

/// Port of the fabric's addresses that leads to the donor's API: on the donor, and in mode `tun` on the origin, whose
/// pods are redirected to it. Not 6443: in mode `tun` it is a port of the node, where an API server may hold that one
/// on every address.
pub const API_PORT: u16 = 7482;
