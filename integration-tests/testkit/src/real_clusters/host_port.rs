//! Forwards a host port to an API server inside the clusters.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::daemon::spawn;

/// A listener on the host's loopback, served by a program in the node's network. It ends with the clusters at the
/// latest.
#[derive(Debug)]
pub(super) struct HostPort {
    child: Child,
    pub(super) port: u16,
}

impl HostPort {
    /// Leads from a free port to `target`, an address in the network of the process `pid`.
    pub(super) fn open(probe: &Path, pid: u32, target: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        // Killed with its owner, also where the supervisor cannot end it any more.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "nsenter", "--target"])
            .arg(pid.to_string())
            .args(["--net", "--"])
            .arg(probe)
            .args(["forward", target]);
        // A socket stays in the network it was made in: the program accepts in the host's and dials in the node's.
        command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { child: spawn(command)?, port })
    }
}

impl Drop for HostPort {
    fn drop(&mut self) {
        // It may have ended with the clusters; either way it is collected here.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
