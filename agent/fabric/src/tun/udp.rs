//! The UDP socket of mode `tun`: each call sends or receives many datagrams.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, poll};

use crate::wire::{Sent, Wire};

/// Buffers of one receive call; each holds many datagrams of one sender.
const RECEIVE_BUFFERS: usize = 8;
const RECEIVE_BYTES: usize = 65_536;
/// Capacity of one send call: a UDP datagram's length, less the headers.
const MAX_SEND_BYTES: usize = 65_000;
/// How long sending waits for a full socket before it drops datagrams.
const FULL_TIMEOUT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A UDP socket with segmentation offload in both directions.
#[derive(Debug)]
pub(crate) struct UdpLink {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl UdpLink {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        Ok(Self { socket, state, local })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// An address in the form of the socket's family.
    fn outer(&self, to: SocketAddr) -> SocketAddr {
        match (self.local, to.ip()) {
            (SocketAddr::V6(_), IpAddr::V4(address)) => SocketAddr::new(address.to_ipv6_mapped().into(), to.port()),
            _ => to,
        }
    }

    fn transmit(&self, to: SocketAddr, contents: &[u8], segment_size: Option<usize>) -> io::Result<()> {
        let destination = self.outer(to);
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Sends datagrams of one size; the last may be shorter.
    fn send_many(&self, to: SocketAddr, datagrams: &[u8], size: usize) {
        let at_once = (MAX_SEND_BYTES / size).clamp(1, self.state.max_gso_segments().max(1));
        for part in datagrams.chunks(at_once * size) {
            loop {
                match self.transmit(to, part, Some(size)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                        if !poll(&mut fds, Some(&FULL_TIMEOUT)).is_ok_and(|ready| ready > 0) {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::trace!(%to, %error, "datagrams not sent");
                        break;
                    }
                    Ok(()) => break,
                }
            }
        }
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire for UdpLink {
    fn send(&self, to: SocketAddr, datagram: &[u8]) -> Sent {
        if let Err(error) = self.transmit(to, datagram, None) {
            tracing::trace!(%to, %error, "datagram not sent");
        }
        // A full socket may drop a handshake message; WireGuard repeats it.
        Sent::Done
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Receive buffers.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    meta: [RecvMeta; RECEIVE_BUFFERS],
}

/// Datagrams of one sender, all of one size except the last.
pub(super) struct ReceivedDatagrams<'a> {
    pub(super) from: SocketAddr,
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; RECEIVE_BUFFERS * RECEIVE_BYTES], meta: [RecvMeta::default(); RECEIVE_BUFFERS] }
    }

    /// Receives the pending datagrams without waiting; returns the number of filled buffers.
    pub(super) fn receive(&mut self, link: &UdpLink) -> io::Result<usize> {
        let mut buffers = self.bytes.chunks_mut(RECEIVE_BYTES).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; RECEIVE_BUFFERS] =
            std::array::from_fn(|_| buffers.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        link.state.recv((&link.socket).into(), &mut slices, &mut self.meta)
    }

    /// The datagrams of the last call.
    pub(super) fn arrived(&self, count: usize) -> impl Iterator<Item = ReceivedDatagrams<'_>> {
        let filled = self.meta.iter().zip(self.bytes.chunks(RECEIVE_BYTES)).take(count);
        filled.map(|(meta, bytes)| ReceivedDatagrams {
            from: SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port()),
            bytes: &bytes[..meta.len.min(RECEIVE_BYTES)],
            size: meta.stride.max(1),
        })
    }
}

/// Sealed packets on their way to the socket.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    filled: usize,
    runs: Vec<Run>,
}

/// Datagrams for one receiver, all of one size except the last.
struct Run {
    to: SocketAddr,
    start: usize,
    size: usize,
    /// The last datagram was shorter, so none may follow.
    complete: bool,
}

/// Space for the datagrams of one device packet, twice.
const OUTBOX_BYTES: usize = 192 * 1024;
/// From this size on it is sent before more is read.
const OUTBOX_ENOUGH: usize = 64 * 1024;
const OUTBOX_RUNS: usize = 32;

impl Outbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; OUTBOX_BYTES], filled: 0, runs: Vec::with_capacity(OUTBOX_RUNS) }
    }

    /// Space for the next datagram.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Appends the datagram of this length that was written to [`room`](Self::room).
    pub(super) fn push(&mut self, to: SocketAddr, length: usize) {
        let start = self.filled;
        self.filled += length;
        if let Some(run) = self.runs.last_mut()
            && run.to == to
            && !run.complete
            && length <= run.size
        {
            run.complete = length < run.size;
            return;
        }
        self.runs.push(Run { to, start, size: length, complete: false });
    }

    pub(super) fn has_enough(&self) -> bool {
        self.filled >= OUTBOX_ENOUGH || self.runs.len() >= OUTBOX_RUNS
    }

    /// Sends everything.
    pub(super) fn flush(&mut self, link: &UdpLink) {
        let mut end = self.filled;
        let mut spans = Vec::with_capacity(self.runs.len());
        for run in self.runs.iter().rev() {
            spans.push((run.to, run.start..end, run.size));
            end = run.start;
        }
        for (to, span, size) in spans.into_iter().rev() {
            link.send_many(to, &self.bytes[span], size);
        }
        self.runs.clear();
        self.filled = 0;
    }
}
