//! The TCP header's fields (RFC 9293) that are read or changed here.

/// TCP's protocol number in an IP header.
pub(crate) const TCP: u8 = 6;
/// Length without options.
pub(crate) const TCP_HEADER_BYTES: usize = 20;
/// Offset of the checksum.
pub(crate) const TCP_CHECKSUM: usize = 16;
/// Flag: the sender has no more data.
pub(crate) const FIN: u8 = 0x01;
/// Flag: opens a connection.
pub(crate) const SYN: u8 = 0x02;
/// Flag: resets the connection.
pub(crate) const RST: u8 = 0x04;
/// Flag: the data should reach the application without delay.
pub(crate) const PSH: u8 = 0x08;
/// Flag: the acknowledgement number counts.
pub(crate) const ACK: u8 = 0x10;
/// Flag: the congestion window was reduced.
pub(crate) const CWR: u8 = 0x80;
