//! What a hostile broker knows and says: its books, its lies, and what it keeps of all that agents send.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::broker_message::Body as Said;
use comity_proto::v1::policy_history_part::Part;
use comity_proto::v1::{lease_report, peering_report};
use comity_runtime::PeerInfo;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::books::{Books, SignedHistory, ToldHistory, ToldMember};
use super::impostor::{IMPOSTOR, Impostor, OpenedEnvelope};
use super::stolen_authority::StolenAuthority;
use crate::watch::now_ms;

/// Messages to an agent that wait for its stream.
const SENDING: usize = 64;
/// Desired states kept for a replay, for each cluster.
const KEPT_STATES: usize = 64;
/// Envelopes kept for a replay.
const KEPT_ENVELOPES: usize = 1_024;
/// Longest time between two messages of an agent.
const HEARTBEAT_MS: u64 = 1_000;
/// Life of a certificate that ends at once.
const SHORT_VALIDITY: Duration = Duration::from_secs(1);
/// Time for which an agent keeps a lease after its end while it reaches no broker.
const OUTAGE_GRACE_MS: u64 = 3_600_000;

/// Encoded messages to an agent.
type ToAgent = ReceiverStream<Result<Vec<u8>, Status>>;
/// The parts of a history, in their order.
pub(super) type PolicyParts = tokio_stream::Iter<std::vec::IntoIter<Result<v1::PolicyHistoryPart, Status>>>;
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
    /// One that ends at once, so that the agent could renew no more.
    Short,
    /// A true one, and a root of the thief's own to trust beside those of the federation.
    PlantedRoot,
    /// One of the first root alone, although the agent knows the next one.
    FirstRoot,
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
    /// Outage grace that it grants each new stream; honest if absent.
    pub(crate) outage_grace_ms: Option<u64>,
    /// Whether it shows an audit log whose first record is another one.
    pub(crate) rewrites_audit_log: bool,
    /// The commit that it says is in force; that of the books if absent.
    pub(crate) policy_commit: Option<String>,
    /// It answers no call.
    pub(crate) is_silent: bool,
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

/// What changes.
pub(super) struct BrokerState {
    pub(super) books: Books,
    pub(super) whims: Whims,
    pub(super) refused: Vec<Refused>,
    pub(super) renewals: u64,
    pub(super) welcomes: u64,
    pub(super) history: ToldHistory,
    pub(super) signed_history: Option<Arc<SignedHistory>>,
    /// Whether the federation has begun to move to its next root.
    pub(super) is_rotated: bool,
    /// Numbers of reports that were not acknowledged, by cluster.
    pub(super) withheld: BTreeMap<String, Vec<u64>>,
    pub(super) opened: Vec<OpenedEnvelope>,
    pub(super) envelopes: Vec<v1::Envelope>,
    pub(super) sent: BTreeMap<String, Vec<v1::DesiredState>>,
    pub(super) disk: File,
}

/// What the services share.
pub(super) struct BrokerCore {
    pub(super) authority: StolenAuthority,
    pub(super) impostor: Impostor,
    pub(super) institutions: BTreeMap<String, String>,
    pub(super) certificate_validity: Duration,
    pub(super) state: Mutex<BrokerState>,
    pub(super) changed: watch::Sender<u64>,
    /// Processes of the broker so far: each ends the streams of the one before.
    pub(super) processes: watch::Sender<u64>,
}

impl BrokerCore {
    /// Locks the state. Never held over an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, BrokerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all streams that something changed.
    pub(super) fn notify(&self) {
        self.changed.send_modify(|number| *number += 1);
    }

    /// Lets the impostor take its next steps.
    pub(super) fn play(&self, state: &mut BrokerState) {
        let BrokerState { books, opened, .. } = state;
        let said: Vec<v1::Envelope> =
            books.peerings.values_mut().flat_map(|entry| self.impostor.play(entry, opened)).collect();
        said.into_iter().for_each(|envelope| books.relay(envelope));
    }

    /// Admits a cluster, as an honest broker does with a valid token.
    pub(super) fn join(&self, request: &v1::JoinRequest) -> Result<Response<v1::JoinResponse>, Status> {
        let issued = self
            .authority
            .issue(&request.csr_der, &request.cluster, self.certificate_validity, false)
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let told = ToldMember {
            identity_key: request.identity_key.clone(),
            institution: self.institutions.get(&request.cluster).cloned().unwrap_or_default(),
        };
        self.lock().books.members.insert(request.cluster.clone(), told);
        Ok(Response::new(v1::JoinResponse {
            certificate_pem: issued.chain_pem,
            ca_pem: self.authority.issuer(false).root_pem().to_owned(),
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
        let (whim, is_rotated) = {
            let mut state = self.lock();
            if state.whims.is_silent {
                return Err(silence());
            }
            state.renewals += 1;
            let turn = state.renewals % (state.whims.renewals.len() as u64).max(1);
            let whim = state.whims.renewals.iter().zip(0..).find(|(_, number)| *number == turn).map(|(whim, _)| *whim);
            (whim, state.is_rotated)
        };
        let roots = |is_rotated| self.authority.issuer(is_rotated).root_pem().to_owned();
        let issue = |cluster: &str, validity, is_rotated| {
            let issued = self.authority.issue(csr, cluster, validity, is_rotated).map_err(failed)?;
            Ok::<_, Status>((issued.chain_pem, roots(is_rotated)))
        };
        let (certificate_pem, ca_pem) = match whim {
            None => issue(&cluster, validity, is_rotated)?,
            Some(WrongRenewal::Cluster) => issue(IMPOSTOR, validity, is_rotated)?,
            Some(WrongRenewal::Short) => issue(&cluster, SHORT_VALIDITY, is_rotated)?,
            Some(WrongRenewal::FirstRoot) => issue(&cluster, validity, false)?,
            Some(WrongRenewal::PlantedRoot) => {
                let (chain, trusted) = issue(&cluster, validity, is_rotated)?;
                let own = StolenAuthority::create().map_err(failed)?;
                (chain, format!("{trusted}{}", own.issuer(false).root_pem()))
            }
            Some(WrongRenewal::Key) => {
                let made = self.authority.issue_for_another_key(&cluster, validity, is_rotated).map_err(failed)?;
                (made.chain, roots(is_rotated))
            }
            Some(WrongRenewal::Authority) => {
                let other = StolenAuthority::create().map_err(failed)?;
                let issued = other.issue(csr, &cluster, validity, false).map_err(failed)?;
                (issued.chain_pem, other.issuer(false).root_pem().to_owned())
            }
        };
        let answer =
            v1::RenewCertificateResponse { certificate_pem, ca_pem, ..v1::RenewCertificateResponse::default() };
        Ok(Response::new(answer))
    }

    /// Shows the history of the policy that it says is in force.
    pub(super) fn policy_history(
        &self,
        request: &v1::GetPolicyHistoryRequest,
    ) -> Result<Response<PolicyParts>, Status> {
        let (history, head) = {
            let state = self.lock();
            if state.whims.is_silent {
                return Err(silence());
            }
            let head = state.whims.policy_commit.clone().unwrap_or_else(|| state.books.policy_commit.clone());
            (state.signed_history.clone(), head)
        };
        let parts = match history.filter(|_| !head.is_empty()) {
            Some(history) => history
                .parts(&request.verified_commit, &head)
                .map_err(|error| Status::failed_precondition(format!("{error:#}")))?,
            None => {
                let head = Part::Head(v1::PolicyHead::default());
                vec![v1::PolicyHistoryPart { part: Some(head) }]
            }
        };
        Ok(Response::new(tokio_stream::iter(parts.into_iter().map(Ok).collect::<Vec<_>>())))
    }

    /// Opens an agent's stream.
    pub(super) fn connect(
        self: Arc<Self>,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<ToAgent>, Status> {
        let cluster = caller(&request)?;
        if self.lock().whims.is_silent {
            return Err(silence());
        }
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
        let (mut changed, mut processes) = (self.changed.subscribe(), self.processes.subscribe());
        changed.mark_changed();
        let Ok(Some(first)) = incoming.message().await else { return };
        let Some(Body::Hello(hello)) = &first.body else { return };
        let audit_size = hello.audit_size;
        self.hear(cluster, &first);
        let welcome = {
            let mut state = self.lock();
            state.welcomes += 1;
            state.history.go_on();
            v1::Welcome {
                broker: 1,
                heartbeat_interval_ms: HEARTBEAT_MS,
                offer_generation: state.books.offers.get(cluster).map_or(0, |offer| offer.generation),
                outage_grace_ms: state.whims.outage_grace_ms.unwrap_or(OUTAGE_GRACE_MS),
                audit: Some(state.history.proof(audit_size, state.whims.rewrites_audit_log)),
            }
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
                _ = processes.changed() => return,
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
        if let Some(commit) = &state.whims.policy_commit {
            desired.policy_commit.clone_from(commit);
        }
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

/// The cluster of the caller's certificate.
fn caller<T>(request: &Request<T>) -> Result<String, Status> {
    let peer = request.extensions().get::<PeerInfo>().and_then(|peer| peer.spiffe.as_ref());
    let cluster = peer.and_then(|id| id.as_cluster()).map(ToString::to_string);
    cluster.ok_or_else(|| Status::unauthenticated("the certificate of a cluster is needed"))
}

fn silence() -> Status {
    Status::unavailable("the broker is silent")
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
