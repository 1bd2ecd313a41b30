//! The network device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tun_rs::{DeviceBuilder, SyncDevice};

use super::vnet::VNET_BYTES;

/// Space for the largest packet of the device, with its header.
pub(super) const READ_BYTES: usize = VNET_BYTES + 65_536;

/// A TUN device with offloads: packets of up to 64 KiB, each after a header that says how a network card would split
/// it. Dropping this removes it.
pub(super) struct TunDevice {
    device: SyncDevice,
}

impl TunDevice {
    /// Makes the device; it is down and has no address.
    pub(super) fn make(name: &str) -> io::Result<Self> {
        let device = DeviceBuilder::new().name(name).offload(true).inherit_enable_state().build_sync()?;
        device.set_nonblocking(true)?;
        Ok(Self { device })
    }

    /// The next packet after its header, without waiting.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.recv(buffer)
    }

    /// Writes a packet after its header.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<usize> {
        self.device.send(packet)
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
