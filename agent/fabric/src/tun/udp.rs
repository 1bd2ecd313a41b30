//! The UDP socket of mode `tun`: many datagrams a call, both ways.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, poll};

use crate::wire::{Sent, Wire};

/// Buffers of one receive call; each takes many datagrams of one sender.
const RECEIVE_BUFFERS: usize = 8;
const RECEIVE_BYTES: usize = 65_536;
/// What one send call takes: a UDP datagram's length, less the headers.
const LARGEST_SEND: usize = 65_000;
/// How long a full socket is waited for before datagrams are given up.
const FULL_TIMEOUT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A UDP socket with segmentation offload both ways.
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

    /// As the socket's family writes it.
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
        let at_once = (LARGEST_SEND / size).clamp(1, self.state.max_gso_segments().max(1));
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
        // A full socket loses a handshake message; it is repeated.
        Sent::Done
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Buffers that datagrams are received into.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    meta: [RecvMeta; RECEIVE_BUFFERS],
}

/// Datagrams of one sender, all of one size but for the last.
pub(super) struct Arrived<'a> {
    pub(super) from: SocketAddr,
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; RECEIVE_BUFFERS * RECEIVE_BYTES], meta: [RecvMeta::default(); RECEIVE_BUFFERS] }
    }

    /// Receives what is there, without waiting; how many buffers it fills.
    pub(super) fn receive(&mut self, link: &UdpLink) -> io::Result<usize> {
        let mut buffers = self.bytes.chunks_mut(RECEIVE_BYTES).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; RECEIVE_BUFFERS] =
            std::array::from_fn(|_| buffers.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        link.state.recv((&link.socket).into(), &mut slices, &mut self.meta)
    }

    /// What the last call received.
    pub(super) fn arrived(&self, count: usize) -> impl Iterator<Item = Arrived<'_>> {
        let filled = self.meta.iter().zip(self.bytes.chunks(RECEIVE_BYTES)).take(count);
        filled.map(|(meta, bytes)| Arrived {
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

/// Datagrams for one receiver, all of one size but for the last.
struct Run {
    to: SocketAddr,
    start: usize,
    size: usize,
    /// A shorter one was the last.
    complete: bool,
}

/// Room for what one packet of the device becomes, and as much again.
const OUTBOX_BYTES: usize = 192 * 1024;
/// From here on it is sent before more is read.
const OUTBOX_ENOUGH: usize = 64 * 1024;
const OUTBOX_RUNS: usize = 32;

impl Outbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; OUTBOX_BYTES], filled: 0, runs: Vec::with_capacity(OUTBOX_RUNS) }
    }

    /// Where the next datagram is to be written.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// A datagram of that length was written.
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
