//! A broker with the federation's certificate authority that says whatever a test wants to real agents.
//!
//! By itself it is honest: it keeps [`Books`] and relays envelopes. [`HostileBroker::change`] writes anything into the
//! books, [`HostileBroker::tamper`] alters each desired state on its way to an agent, and [`Whims`] holds its other
//! lies. It keeps every byte that it receives in a file, as a stolen disk would.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use comity_audit::TreeHead;
use comity_proto::v1;
use comity_runtime::tls::IncomingLimits;
use comity_runtime::{IdentitySource, Roots, SecretString, ServerTls, TlsIdentity, incoming};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;

use super::books::{Books, SignedHistory, ToldHistory};
use super::broker_core::{BrokerCore, BrokerState, Refused, Whims};
use super::hostile_services::{AgentDoor, EnrolmentDoor};
use super::impostor::{Impostor, OpenedEnvelope};
use super::stolen_authority::StolenAuthority;

/// Life of the broker's own certificate.
const BROKER_VALIDITY: Duration = Duration::from_secs(24 * 3_600);

/// The running broker. Dropping it ends it.
pub(crate) struct HostileBroker {
    core: Arc<BrokerCore>,
    address: SocketAddr,
    disk: PathBuf,
    server: JoinHandle<()>,
}

impl Drop for HostileBroker {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl HostileBroker {
    /// Serves on loopback and keeps what it receives below `dir`. `institutions` are those of the clusters that will
    /// join, and their certificates are valid for `certificate_validity`.
    ///
    /// # Errors
    /// When no port is free, or the directory cannot be written.
    pub(crate) async fn start(
        dir: &Path,
        institutions: BTreeMap<String, String>,
        certificate_validity: Duration,
    ) -> Result<Self> {
        let authority = StolenAuthority::create()?;
        let identity = IdentitySource::new(TlsIdentity::from_pem(&authority.broker_identity(BROKER_VALIDITY)?)?);
        let tls = ServerTls::new(identity.subscribe(), authority.roots());
        let disk = dir.join("stolen-disk");
        std::fs::create_dir_all(&disk)?;
        let core = Arc::new(BrokerCore {
            authority,
            impostor: Impostor::start().await?,
            institutions,
            certificate_validity,
            state: Mutex::new(BrokerState {
                books: Books::default(),
                whims: Whims::default(),
                refused: Vec::new(),
                renewals: 0,
                welcomes: 0,
                history: ToldHistory::default(),
                signed_history: None,
                is_rotated: false,
                withheld: BTreeMap::new(),
                opened: Vec::new(),
                envelopes: Vec::new(),
                sent: BTreeMap::new(),
                disk: File::create(disk.join("received"))?,
            }),
            changed: watch::Sender::default(),
            processes: watch::Sender::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (agents, enrolment) = (AgentDoor(Arc::clone(&core)), EnrolmentDoor(Arc::clone(&core)));
        let server = tokio::spawn(async move {
            // Held here: without the source the server has no identity to present.
            let _identity = identity;
            let connections = incoming(listener, tls, IncomingLimits::default());
            let served = Server::builder().add_service(agents).add_service(enrolment);
            if let Err(error) = served.serve_with_incoming(connections).await {
                tracing::error!(%error, "the hostile broker ended");
            }
        });
        Ok(Self { core, address, disk, server })
    }

    /// A join token for a cluster.
    ///
    /// # Errors
    /// When the name is invalid.
    pub(crate) fn join_token(&self, cluster: &str) -> Result<SecretString> {
        self.core.authority.join_token(&self.address.to_string(), cluster)
    }

    /// Writes into the books, and tells the agents.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Books) -> T) -> T {
        let mut state = self.core.lock();
        let changed = change(&mut state.books);
        self.core.play(&mut state);
        drop(state);
        self.core.notify();
        changed
    }

    /// Reads the books.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Books) -> T) -> T {
        read(&self.core.lock().books)
    }

    /// Changes its lies, and tells the agents.
    pub(crate) fn lie(&self, change: impl FnOnce(&mut Whims)) {
        change(&mut self.core.lock().whims);
        self.core.notify();
    }

    /// Alters each desired state from now on.
    pub(crate) fn tamper(&self, tamper: impl FnMut(&str, &mut v1::DesiredState) + Send + 'static) {
        self.lie(|whims| whims.tamper = Some(Box::new(tamper)));
    }

    /// Is honest again.
    pub(crate) fn be_honest(&self) {
        self.lie(|whims| *whims = Whims::default());
    }

    /// Puts the second commit of a signed history into force.
    pub(crate) fn sign_policy(&self, history: SignedHistory) {
        let mut state = self.core.lock();
        state.books.policy_commit.clone_from(&history.second);
        state.signed_history = Some(Arc::new(history));
    }

    /// The signed history of the policy, if there is one.
    pub(crate) fn signed_history(&self) -> Option<Arc<SignedHistory>> {
        self.core.lock().signed_history.clone()
    }

    /// Whether it has shown this head of the audit log while it was honest.
    pub(crate) fn has_shown(&self, head: &str) -> Result<bool> {
        let head: TreeHead = head.parse().map_err(anyhow::Error::msg)?;
        Ok(self.core.lock().history.has(&head))
    }

    /// Ends all streams, as when another process takes over.
    pub(crate) fn restart(&self) {
        self.core.processes.send_modify(|number| *number += 1);
    }

    /// From now on it issues honest certificates under the federation's next root, with both roots trusted.
    pub(crate) fn rotate(&self) {
        self.core.lock().is_rotated = true;
    }

    /// The federation's own roots, the next one included.
    pub(crate) fn roots(&self) -> &Roots {
        self.core.authority.roots()
    }

    /// The certificate of an authority whose key it has.
    pub(crate) fn root_pem(&self) -> &str {
        self.core.authority.issuer(false).root_pem()
    }

    /// The cluster that it plays.
    pub(crate) fn impostor(&self) -> &Impostor {
        &self.core.impostor
    }

    /// Envelopes that the impostor's keys open.
    pub(crate) fn opened(&self) -> Vec<OpenedEnvelope> {
        self.core.lock().opened.clone()
    }

    /// All refusals so far.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        self.core.lock().refused.clone()
    }

    /// Number of renewals that agents asked for.
    pub(crate) fn renewals(&self) -> u64 {
        self.core.lock().renewals
    }

    /// Number of streams that it welcomed.
    pub(crate) fn welcomes(&self) -> u64 {
        self.core.lock().welcomes
    }

    /// Envelopes that it relayed, the oldest first.
    pub(crate) fn envelopes(&self) -> Vec<v1::Envelope> {
        self.core.lock().envelopes.clone()
    }

    /// Honest desired states of a cluster, the oldest first.
    pub(crate) fn sent(&self, cluster: &str) -> Vec<v1::DesiredState> {
        self.core.lock().sent.get(cluster).cloned().unwrap_or_default()
    }

    /// Directory with every byte that it received.
    pub(crate) fn disk(&self) -> &Path {
        &self.disk
    }
}
