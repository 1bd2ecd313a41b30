//! A broker with the federation's certificate authority that says whatever a test wants to real agents.
//!
//! By itself it is honest: it keeps [`Books`] and relays envelopes. [`HostileBroker::change`] writes anything into the
//! books, [`HostileBroker::tamper`] alters each desired state on its way to an agent, and [`Whims`] holds its other
//! lies. It keeps every byte that it receives in a file, as a stolen disk would.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::broker_message::Body as Said;
use comity_proto::v1::{lease_report, peering_report};
use comity_runtime::tls::IncomingLimits;
use comity_runtime::{IdentitySource, PeerInfo, SecretString, ServerTls, TlsIdentity, incoming};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::books::{Books, ToldMember};
use super::hostile_services::{AgentDoor, EnrolmentDoor};
use super::impostor::{IMPOSTOR, Impostor, OpenedEnvelope};
use super::stolen_authority::StolenAuthority;
use crate::watch::now_ms;

/// Messages to an agent that wait for its stream.
const SENDING: usize = 64;
/// Desired states kept for a replay, for each cluster.
const KEPT_STATES: usize = 64;
/// Envelopes kept for a replay.
const KEPT_ENVELOPES: usize = 1_024;
/// Life of the broker's own certificate.
const BROKER_VALIDITY: Duration = Duration::from_secs(24 * 3_600);
/// Longest time between two messages of an agent.
const HEARTBEAT_MS: u64 = 1_000;
/// Time for which an agent keeps a lease after its end while it reaches no broker.
const OUTAGE_GRACE_MS: u64 = 3_600_000;

/// Encoded messages to an agent.
type ToAgent = ReceiverStream<Result<Vec<u8>, Status>>;
/// Alters the desired state of a cluster.
pub(crate) type Tamper = Box<dyn FnMut(&str, &mut v1::DesiredState) + Send>;

/// How the broker acknowledges reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AckWhim {
    /// It commits them.
    #[default]
    Honest,
    /// It says that each is refused.
    Refuse,
    /// It says nothing.
    Withhold,
}

/// Which wrong certificate a renewal returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongRenewal {
    /// One of the same cluster for another key.
    Key,
    /// One for the agent's key under the impostor's name.
    Cluster,
    /// One of another authority.
    Authority,
}

/// The lies of the broker beside its books.
#[derive(Default)]
pub(crate) struct Whims {
    /// Alters desired states.
    pub(crate) tamper: Option<Tamper>,
    /// Acknowledgements.
    pub(crate) acks: AckWhim,
    /// Renewals, in turn; honest if there are none.
    pub(crate) renewals: Vec<WrongRenewal>,
    /// Bytes to send in place of a message, once, by cluster.
    pub(crate) raw: BTreeMap<String, Vec<Vec<u8>>>,
}

/// A side's report that it refuses or cannot do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Cluster that reports it.
    pub(crate) cluster: String,
    /// The lease or peering.
    pub(crate) subject: String,
    /// Stable code.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
}

struct BrokerState {
    books: Books,
    whims: Whims,
    refused: Vec<Refused>,
    renewals: u64,
    /// Numbers of reports that were not acknowledged, by cluster.
    withheld: BTreeMap<String, Vec<u64>>,
    opened: Vec<OpenedEnvelope>,
    envelopes: Vec<v1::Envelope>,
    sent: BTreeMap<String, Vec<v1::DesiredState>>,
    disk: File,
}

/// What the services share.
pub(super) struct BrokerCore {
    authority: StolenAuthority,
    impostor: Impostor,
    institutions: BTreeMap<String, String>,
    certificate_validity: Duration,
    state: Mutex<BrokerState>,
    changed: watch::Sender<u64>,
}

impl BrokerCore {
    fn lock(&self) -> MutexGuard<'_, BrokerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_modify(|number| *number += 1);
    }

    /// Lets the impostor take its next steps.
    fn play(&self, state: &mut BrokerState) {
        let BrokerState { books, opened, .. } = state;
        let said: Vec<v1::Envelope> =
            books.peerings.values_mut().flat_map(|entry| self.impostor.play(entry, opened)).collect();
        said.into_iter().for_each(|envelope| books.relay(envelope));
    }

    /// Admits a cluster, as an honest broker does with a valid token.
    pub(super) fn join(&self, request: &v1::JoinRequest) -> Result<Response<v1::JoinResponse>, Status> {
        let issued = self
            .authority
            .issue(&request.csr_der, &request.cluster, self.certificate_validity)
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let told = ToldMember {
            identity_key: request.identity_key.clone(),
            institution: self.institutions.get(&request.cluster).cloned().unwrap_or_default(),
        };
        self.lock().books.members.insert(request.cluster.clone(), told);
        Ok(Response::new(v1::JoinResponse {
            certificate_pem: issued.chain_pem,
            ca_pem: self.authority.authority().root_pem().to_owned(),
            ..v1::JoinResponse::default()
        }))
    }

    /// Renews a certificate, as the whim of the moment is.
    pub(super) fn renew(
        &self,
        request: &Request<v1::RenewCertificateRequest>,
    ) -> Result<Response<v1::RenewCertificateResponse>, Status> {
        let cluster = caller(request)?;
        let failed = |error: anyhow::Error| Status::invalid_argument(format!("{error:#}"));
        let (csr, validity) = (&request.get_ref().csr_der, self.certificate_validity);
        let own_root = || self.authority.authority().root_pem().to_owned();
        let whim = {
            let mut state = self.lock();
            state.renewals += 1;
            let turn = state.renewals % (state.whims.renewals.len() as u64).max(1);
            state.whims.renewals.iter().zip(0..).find(|(_, number)| *number == turn).map(|(whim, _)| *whim)
        };
        let (certificate_pem, ca_pem) = match whim {
            None => (self.authority.issue(csr, &cluster, validity).map_err(failed)?.chain_pem, own_root()),
            Some(WrongRenewal::Cluster) => {
                (self.authority.issue(csr, IMPOSTOR, validity).map_err(failed)?.chain_pem, own_root())
            }
            Some(WrongRenewal::Key) => {
                (self.authority.issue_for_another_key(&cluster, validity).map_err(failed)?.chain, own_root())
            }
            Some(WrongRenewal::Authority) => {
                let other = StolenAuthority::create().map_err(failed)?;
                let issued = other.issue(csr, &cluster, validity).map_err(failed)?;
                (issued.chain_pem, other.authority().root_pem().to_owned())
            }
        };
        let answer =
            v1::RenewCertificateResponse { certificate_pem, ca_pem, ..v1::RenewCertificateResponse::default() };
        Ok(Response::new(answer))
    }

    /// Opens an agent's stream.
    pub(super) fn connect(
        self: Arc<Self>,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<ToAgent>, Status> {
        let cluster = caller(&request)?;
        let (sender, receiver) = mpsc::channel(SENDING);
        tokio::spawn(async move { self.serve(&cluster, request.into_inner(), sender).await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn serve(
        &self,
        cluster: &str,
        mut incoming: Streaming<v1::AgentMessage>,
        sender: mpsc::Sender<Result<Vec<u8>, Status>>,
    ) {
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        let welcome = v1::Welcome {
            broker: 1,
            heartbeat_interval_ms: HEARTBEAT_MS,
            offer_generation: self.lock().books.offers.get(cluster).map_or(0, |offer| offer.generation),
            outage_grace_ms: OUTAGE_GRACE_MS,
        };
        if sender.send(Ok(encode(Said::Welcome(welcome)))).await.is_err() {
            return;
        }
        loop {
            let said = tokio::select! {
                heard = incoming.message() => match heard {
                    Ok(Some(message)) => self.hear(cluster, &message).into_iter().collect(),
                    Ok(None) | Err(_) => return,
                },
                change = changed.changed() => match change {
                    Ok(()) => self.say(cluster),
                    Err(_) => return,
                },
            };
            for message in said {
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Takes a report; returns its acknowledgement.
    fn hear(&self, cluster: &str, message: &v1::AgentMessage) -> Option<Vec<u8>> {
        let body = message.body.as_ref()?;
        let mut state = self.lock();
        // A full disk of this machine fails the search for secrets at the end, not this stream.
        let _ = state.disk.write_all(&message.encode_to_vec());
        state.refused.extend(refused(cluster, body));
        if let Body::Envelope(envelope) = body {
            let opened = self.impostor.open(envelope, &state.books.members);
            state.opened.extend(opened);
            if state.envelopes.len() == KEPT_ENVELOPES {
                state.envelopes.remove(KEPT_ENVELOPES / 2);
            }
            state.envelopes.push(envelope.clone());
        }
        state.books.take(cluster, body, now_ms());
        self.play(&mut state);
        let ack = match state.whims.acks {
            _ if message.message_id == 0 => None,
            AckWhim::Withhold => {
                state.withheld.entry(cluster.to_owned()).or_default().push(message.message_id);
                None
            }
            AckWhim::Honest => Some(v1::Ack { message_id: message.message_id, error: None }),
            AckWhim::Refuse => {
                let error = v1::ErrorDetail { code: "wrong-state".to_owned(), ..v1::ErrorDetail::default() };
                Some(v1::Ack { message_id: message.message_id, error: Some(error) })
            }
        };
        drop(state);
        if !matches!(body, Body::Hello(_) | Body::Heartbeat(_)) {
            self.notify();
        }
        ack.map(|ack| encode(Said::Ack(ack)))
    }

    /// The next messages for an agent.
    fn say(&self, cluster: &str) -> Vec<Vec<u8>> {
        let mut state = self.lock();
        let mut desired = state.books.desired(cluster, &self.impostor.told(), now_ms());
        let sent = state.sent.entry(cluster.to_owned()).or_default();
        if sent.len() == KEPT_STATES {
            // The first ones stay, so that a replay can be of long ago.
            sent.remove(KEPT_STATES / 2);
        }
        sent.push(desired.clone());
        if let Some(tamper) = &mut state.whims.tamper {
            tamper(cluster, &mut desired);
        }
        let mut said = state.whims.raw.remove(cluster).unwrap_or_default();
        said.insert(0, encode(Said::Desired(desired)));
        if state.whims.acks == AckWhim::Honest {
            let late = state.withheld.remove(cluster).unwrap_or_default();
            let ack = |message_id| encode(Said::Ack(v1::Ack { message_id, error: None }));
            said.extend(late.into_iter().map(ack));
        }
        said
    }
}

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
        let tls = ServerTls::new(identity.subscribe(), authority.authority().roots());
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
                withheld: BTreeMap::new(),
                opened: Vec::new(),
                envelopes: Vec::new(),
                sent: BTreeMap::new(),
                disk: File::create(disk.join("received"))?,
            }),
            changed: watch::Sender::default(),
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

/// The cluster of the caller's certificate.
fn caller<T>(request: &Request<T>) -> Result<String, Status> {
    let peer = request.extensions().get::<PeerInfo>().and_then(|peer| peer.spiffe.as_ref());
    let cluster = peer.and_then(|id| id.as_cluster()).map(ToString::to_string);
    cluster.ok_or_else(|| Status::unauthenticated("the certificate of a cluster is needed"))
}

fn encode(body: Said) -> Vec<u8> {
    v1::BrokerMessage { body: Some(body) }.encode_to_vec()
}

fn refused(cluster: &str, body: &Body) -> Option<Refused> {
    let (subject, code, message) = match body {
        Body::LeaseReport(v1::LeaseReport { lease, outcome: Some(lease_report::Outcome::Failed(failed)), .. }) => {
            (lease, &failed.code, &failed.message)
        }
        Body::PeeringReport(v1::PeeringReport {
            peering,
            outcome: Some(peering_report::Outcome::Failed(failed)),
            ..
        }) => (peering, &failed.code, &failed.message),
        _ => return None,
    };
    let (cluster, subject) = (cluster.to_owned(), subject.clone());
    Some(Refused { cluster, subject, code: code.clone(), message: message.clone() })
}
