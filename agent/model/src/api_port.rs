//! The way to a donor's API: the port inside tunnels, and the mark of the agent's own connections.

/// Port of the fabric's addresses that leads to the donor's API: on the donor, and in mode `tun` on the origin, whose
/// pods are redirected to it. Not 6443: in mode `tun` it is a port of the node, where an API server may hold that one
/// on every address.
pub const API_PORT: u16 = 7482;

/// Mark of the sockets by which the agent calls a donor's API: in mode `tun` the packet filter redirects them, and no other
/// connection of the host. Compared by its 16 bits, because network plugins use the upper ones; kube-proxy uses 0x4000
/// and 0x8000, Cilium 0x0f00.
pub const DONOR_API_MARK: u32 = 0x10c7;
