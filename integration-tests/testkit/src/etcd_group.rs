//! Runs an etcd group with mutual TLS on loopback for comparisons, without root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::binaries::Binaries;
use crate::daemon::{Daemon, DaemonSpec};
use crate::pki::{Authority, PkiError};
use crate::port;
use crate::process::{self, SweepError};

/// Members of a group.
pub const MEMBERS: usize = 3;
const NAMES: [&str; MEMBERS] = ["etcd-1", "etcd-2", "etcd-3"];

/// Why an etcd group does not run.
#[derive(Debug, thiserror::Error)]
pub enum EtcdGroupError {
    /// A file, a port or a process.
    #[error("cannot start a group of etcd in {}", dir.display())]
    Io {
        /// Its folder.
        dir: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Certificates could not be created.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The folder is in use, or leftovers of an earlier run cannot be removed.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// There is no such member.
    #[error("there is no member {0} of a group of etcd; they are 0 to 2")]
    NoMember(usize),
}

/// The credentials of a client, in PEM.
#[derive(Clone)]
pub struct ClientPem {
    /// Its certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The authority of the members.
    pub authority: String,
}

/// Three members on loopback with durable writes. Dropping it kills them.
pub struct EtcdGroup {
    members: Vec<Daemon>,
    endpoints: Vec<String>,
    client: ClientPem,
}

impl EtcdGroup {
    /// Starts three members with data in their own folder `dir`, without waiting until they serve.
    ///
    /// # Errors
    ///
    /// When files, ports, certificates or processes cannot be created.
    pub fn start(binaries: &Binaries, dir: &Path) -> Result<Self, EtcdGroupError> {
        let io = |source| EtcdGroupError::Io { dir: dir.to_owned(), source };
        let (run, log) = (dir.join("run"), dir.join("log"));
        fs::create_dir_all(&log).map_err(io)?;
        process::own(&run)?;
        let authority = Authority::open(&dir.join("pki"))?;
        let client = authority.client("client", "bench", None)?;
        let ports = port::free::<{ 2 * MEMBERS }>().map_err(io)?;
        let (clients, peers) = ports.split_at(MEMBERS);
        let url = |port: &u16| format!("https://127.0.0.1:{port}");
        let cluster: Vec<String> =
            NAMES.iter().zip(peers).map(|(name, peer)| format!("{name}={}", url(peer))).collect();
        let mut members = Vec::new();
        for ((name, client), peer) in NAMES.into_iter().zip(clients).zip(peers) {
            // etcd's peers are clients and servers of each other.
            authority.client(name, name, None)?;
            let mut args = vec![
                format!("--name={name}"),
                format!("--data-dir={}", dir.join(name).display()),
                "--log-level=warn".to_owned(),
                format!("--listen-client-urls={}", url(client)),
                format!("--advertise-client-urls={}", url(client)),
                format!("--listen-peer-urls={}", url(peer)),
                format!("--initial-advertise-peer-urls={}", url(peer)),
                format!("--initial-cluster={}", cluster.join(",")),
                "--client-cert-auth".to_owned(),
                "--peer-client-cert-auth".to_owned(),
            ];
            for prefix in ["", "peer-"] {
                let file = |name: &str| authority.path(name).display().to_string();
                args.push(format!("--{prefix}trusted-ca-file={}", file("ca.crt")));
                args.push(format!("--{prefix}cert-file={}", file(&format!("{name}.crt"))));
                args.push(format!("--{prefix}key-file={}", file(&format!("{name}.key"))));
            }
            let spec = DaemonSpec {
                name,
                program: binaries.program("etcd"),
                args,
                env: Vec::new(),
                log: log.join(format!("{name}.log")),
                pid_file: run.join(format!("{name}.pid")),
            };
            members.push(Daemon::start(spec).map_err(io)?);
        }
        Ok(Self {
            members,
            endpoints: clients.iter().map(|port| format!("127.0.0.1:{port}")).collect(),
            client: ClientPem {
                certificate: client.certificate_pem,
                key: client.key_pem,
                authority: authority.ca_pem().to_owned(),
            },
        })
    }

    /// Client addresses of the members, "127.0.0.1:PORT".
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The credentials of a client.
    #[must_use]
    pub fn client(&self) -> &ClientPem {
        &self.client
    }

    /// Process ids of the running members.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Daemon::pid).collect()
    }

    /// Kills a member with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// [`EtcdGroupError::NoMember`].
    pub fn kill(&self, member: usize) -> Result<(), EtcdGroupError> {
        self.member(member).map(Daemon::kill)
    }

    /// Restarts a member with its data.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn restart(&self, member: usize) -> Result<(), EtcdGroupError> {
        let daemon = self.member(member)?;
        daemon.restart().map_err(|source| EtcdGroupError::Io { dir: PathBuf::from(daemon.name()), source })
    }

    /// The ends of the members' logs, for error messages.
    #[must_use]
    pub fn logs(&self) -> String {
        self.members.iter().map(|member| format!("\n--- {}\n{}", member.name(), member.log_tail())).collect()
    }

    fn member(&self, number: usize) -> Result<&Daemon, EtcdGroupError> {
        self.members.get(number).ok_or(EtcdGroupError::NoMember(number))
    }
}
