//! Steps of Liqo's key exchange over one peering.
//!
//! ```text
//! donor:  challenge ───────────▶ admit (tenant made) ─▶ …
//!              └─▶ liqo-challenge   ▲ liqo-tenant  └─▶ liqo-identity
//! origin:          answer ──────────┘                        └─▶ identity (made)
//! ```
//!
//! If the donor lends by token, it sends one message for each token:
//!
//! ```text
//! donor:  mint ──▶ … ──▶ mint ──▶ …
//!           └─▶ liqo-identity └─▶ liqo-identity
//! origin:          └─▶ identity       └─▶ identity
//! ```
//!
//! If Liqo's own network carries pods, both sides also send each other its state whenever that changes; the state comes
//! from `Live::networks`.
//!
//! ```text
//! donor:  network ─▶ … ──▶ network ─▶ …
//!            └─▶ liqo-server  ▲ liqo-client
//! origin:          network ───┘
//! ```
//!
//! Every unopened message is processed, whatever the records say, so that a side that lost its records recovers. This
//! side's newest message is sealed again if it may be lost and a lease waits for it.

use comity_agent_liqo::network::{NetworkState, NetworkStatus};
use comity_agent_liqo::{Challenge, IdentityParams, TenantRequest, messages::Message as _};
use comity_agent_model::envelope::Envelope;
use comity_agent_model::lease::Lease;
use comity_agent_model::peering::PeeringDirective;
use comity_agent_state::record::{LiqoRecord, PeeringRecord, ReportKey, SealedMessage};
use comity_types::{Delivery, PeeringId, PeeringState, Side};

use super::{Snapshot, Step};
use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::steps::liqo::{
    LiqoAdmit, LiqoAnswer, LiqoChallenge, LiqoIdentity, LiqoMint, LiqoNetwork, LiqoRemove,
};

/// Pause after a permanent failure; leases are refused meanwhile.
const RETRY_AFTER_MS: u64 = 60_000;
/// Shortest pause between two tokens, should the broker refuse one.
const MINT_PAUSE_MS: u64 = 10_000;

pub(super) fn plan(snapshot: &Snapshot<'_>, directive: &PeeringDirective, steps: &mut Vec<Step>) {
    let peering = &directive.peering;
    use PeeringState::{Authenticating, Established, Establishing};
    let stands = matches!(peering.state, Some(Authenticating | Establishing | Established))
        && !snapshot.is_reported(&ReportKey::PeeringFailed(peering.id, peering.epoch));
    let keys = snapshot.records.peering(peering.id, peering.epoch);
    if let (true, Some(keys)) = (stands, keys) {
        exchange(snapshot, keys, steps);
    }
}

/// State of the Liqo exchange of a peering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExchangeState {
    /// This side's half is complete.
    Ready,
    /// In progress.
    Pending,
    /// It cannot complete: code and reason.
    Impossible(&'static str, String),
}

/// Whether a virtual node can be made over a peering.
pub(super) fn exchange_state(snapshot: &Snapshot<'_>, peering: PeeringId) -> ExchangeState {
    let epoch = snapshot.directive(peering).map(|directive| directive.peering.epoch);
    let keys = epoch.and_then(|epoch| snapshot.records.peering(peering, epoch));
    if let Some(reason) = keys.and_then(|keys| impossible(snapshot, keys)) {
        return ExchangeState::Impossible("peer-cannot", reason);
    }
    match snapshot.records.liqo.get(&peering) {
        Some(record) => match failure(snapshot, record) {
            _ if record.done && record.network.is_none() => ExchangeState::Ready,
            Some(message) => ExchangeState::Impossible("liqo-refused", message.to_owned()),
            None if record.done => network_state(snapshot, record),
            None => ExchangeState::Pending,
        },
        None => ExchangeState::Pending,
    }
}

/// Whether Liqo's network, where it carries pods, reaches those of a virtual node.
fn network_state(snapshot: &Snapshot<'_>, record: &LiqoRecord) -> ExchangeState {
    let carrier = snapshot.records.network_carrier(&record.liqo_id);
    match carrier.and_then(|carrier| snapshot.live.networks.get(&carrier)).map(|seen| &seen.status) {
        Some(NetworkStatus::Ready { .. }) => ExchangeState::Ready,
        Some(NetworkStatus::Refused(reason)) => ExchangeState::Impossible("liqo-refused", reason.clone()),
        Some(NetworkStatus::Pending(_)) | None => ExchangeState::Pending,
    }
}

/// Whether Liqo's gateways carry this cluster's pods.
fn leaves_pods_to_liqo(snapshot: &Snapshot<'_>) -> bool {
    snapshot.network.is_some_and(|network| network.liqo_network)
}

/// Why the two clusters' networks do not fit together, once both are known.
fn impossible(snapshot: &Snapshot<'_>, keys: &PeeringRecord) -> Option<String> {
    let remote = keys.remote.as_ref()?;
    let cluster = &remote.cluster;
    if remote.network.liqo_cluster_id.is_empty() {
        return Some(format!("cluster {cluster} has no Liqo that its agent uses; set liqo.enabled there"));
    }
    match (leaves_pods_to_liqo(snapshot), remote.network.liqo_network) {
        (true, false) => {
            return Some(format!(
                "this cluster leaves pods to Liqo's gateways and cluster {cluster} does not; set liqo.network: liqo \
                 there, or comity here"
            ));
        }
        (false, true) => {
            return Some(format!(
                "cluster {cluster} leaves pods to Liqo's gateways and this cluster does not; set liqo.network: liqo \
                 here, or comity there"
            ));
        }
        _ => {}
    }
    // Where Liqo carries pods, this cluster's own fabric is enough to reach an API server.
    if snapshot.service.needs_tun && !remote.network.tun && !remote.network.liqo_network {
        return Some(format!("the fabric of cluster {cluster} routes no pods; set fabric.mode: tun there"));
    }
    let checked = remote.network.check(cluster, snapshot.network, snapshot.service, keys.side);
    checked.err().map(|reason| format!("cluster {cluster}: {reason}"))
}

fn failure<'a>(snapshot: &Snapshot<'_>, record: &'a LiqoRecord) -> Option<&'a str> {
    let failed = record.failed.as_ref()?;
    let recent = snapshot.now_ms < failed.at_ms.saturating_add(RETRY_AFTER_MS);
    recent.then_some(failed.message.as_str())
}

/// This side's leases by virtual node over a peering; on the donor only those that it admitted.
fn wanting<'a>(snapshot: &'a Snapshot<'_>, keys: &'a PeeringRecord) -> impl Iterator<Item = &'a Lease> {
    let ours = |lease: &&Lease| match keys.side {
        Side::Donor => snapshot.records.donors.get(&lease.id).is_some_and(|record| !record.removed),
        Side::Origin => lease.origin.as_str() == snapshot.cluster,
    };
    let is_bound = |lease: &&Lease| BoundPeering::of(snapshot.binding(), lease, keys.side).is_ok();
    let over_it = |lease: &&Lease| lease.peering == keys.peering && lease.delivery == Delivery::VirtualNode;
    snapshot.desired.leases.iter().filter(over_it).filter(|lease| lease.is_wanted()).filter(ours).filter(is_bound)
}

fn exchange(snapshot: &Snapshot<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) {
    let record = snapshot.records.liqo.get(&keys.peering);
    let can = match keys.side {
        Side::Donor => &snapshot.service.lends,
        Side::Origin => &snapshot.service.borrows,
    };
    // Existing leases continue even if this cluster can lend no more.
    let can = can.is_ok() || record.is_some_and(|record| record.minted.is_some());
    let Some(remote) = keys.remote.as_ref().filter(|_| can && impossible(snapshot, keys).is_none()) else { return };
    let wanted = wanting(snapshot, keys).next().is_some();
    let Some(record) = record else {
        if wanted {
            begin(snapshot, keys, steps);
        }
        return;
    };
    let own_id = snapshot.network.map_or("", |network| network.liqo_cluster_id.as_str());
    let reinstalled = record.liqo_id != remote.network.liqo_cluster_id || record.own_liqo_id != own_id;
    if reinstalled || record.active_network().is_some() != leaves_pods_to_liqo(snapshot) {
        // One Liqo was reinstalled, or the network changed: the exchange starts over.
        steps.push(LiqoRemove { peering: keys.peering }.into());
        return;
    }
    if failure(snapshot, record).is_none() {
        ExchangePlan { snapshot, keys, record, needed: wanting(snapshot, keys).any(|lease| !lease.origin_ready) }
            .plan(steps);
    }
}

fn begin(snapshot: &Snapshot<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) {
    let (peering, epoch) = (keys.peering, keys.epoch);
    match keys.side {
        Side::Donor if snapshot.service.authentication.by_token => steps.push(LiqoMint { peering, epoch }.into()),
        Side::Donor => match unopened(snapshot, keys, TenantRequest::STEP) {
            // The origin remembers an exchange that this side has lost.
            Some(envelope) => steps.push(LiqoAdmit { peering, epoch, envelope: Some(envelope.clone()) }.into()),
            None => steps.push(LiqoChallenge { peering, epoch }.into()),
        },
        Side::Origin => {
            open_as_origin(snapshot, keys, steps);
        }
    }
}

fn envelopes<'a>(
    snapshot: &'a Snapshot<'_>,
    keys: &'a PeeringRecord,
    step: &'static str,
) -> impl Iterator<Item = &'a Envelope> {
    snapshot.desired.envelopes.iter().filter(move |envelope| {
        let key = &envelope.key;
        key.peering == keys.peering && key.epoch == keys.epoch && key.lease.is_none() && key.step == step
    })
}

fn unopened<'a>(snapshot: &'a Snapshot<'_>, keys: &'a PeeringRecord, step: &'static str) -> Option<&'a Envelope> {
    envelopes(snapshot, keys, step)
        .filter(|envelope| !keys.has_opened(&envelope.key))
        .max_by_key(|envelope| envelope.key.sequence)
}

/// Plans to open the donor's newest message; false if there is none.
fn open_as_origin(snapshot: &Snapshot<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) -> bool {
    let (peering, epoch) = (keys.peering, keys.epoch);
    if let Some(envelope) = unopened(snapshot, keys, IdentityParams::STEP) {
        steps.push(LiqoIdentity { peering, epoch, envelope: Some(envelope.clone()) }.into());
    } else if let Some(envelope) = unopened(snapshot, keys, Challenge::STEP) {
        steps.push(LiqoAnswer { peering, epoch, envelope: Some(envelope.clone()) }.into());
    } else {
        return false;
    }
    true
}

struct ExchangePlan<'a> {
    snapshot: &'a Snapshot<'a>,
    keys: &'a PeeringRecord,
    record: &'a LiqoRecord,
    /// A lease waits for the exchange.
    needed: bool,
}

impl ExchangePlan<'_> {
    fn plan(&self, steps: &mut Vec<Step>) {
        let before = steps.len();
        self.network(steps);
        if steps.len() == before {
            match self.keys.side {
                Side::Donor => self.donor(steps),
                Side::Origin => self.origin(steps),
            }
        }
        if steps.len() == before {
            self.acknowledge(steps);
        }
    }

    /// Opens the other side's message first; then sends this side's if it changed or may be lost.
    fn network(&self, steps: &mut Vec<Step>) {
        let Some(network) = self.record.active_network() else { return };
        let (peering, epoch) = (self.keys.peering, self.keys.epoch);
        if let Some(envelope) = unopened(self.snapshot, self.keys, NetworkState::step(self.keys.side.other())) {
            steps.push(LiqoNetwork { peering, epoch, envelope: Some(envelope.clone()) }.into());
            return;
        }
        let carries = self.snapshot.records.network_carrier(&self.record.liqo_id) == Some(peering);
        let seen = self.snapshot.live.networks.get(&peering).filter(|_| carries);
        let Some(local) = seen.and_then(|seen| seen.local.as_ref()) else { return };
        let changed = network.sent.as_ref() != Some(local);
        let in_vain = self.needed && self.may_be_lost(network.sealed.as_ref());
        if (changed || in_vain) && !self.snapshot.is_reported(&ReportKey::LiqoNetwork(peering)) {
            steps.push(LiqoNetwork { peering, epoch, envelope: None }.into());
        }
    }

    fn donor(&self, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.keys.peering, self.keys.epoch);
        if self.uses_token() {
            if self.is_mint_due() {
                steps.push(LiqoMint { peering, epoch }.into());
            }
        } else if let Some(envelope) = unopened(self.snapshot, self.keys, TenantRequest::STEP) {
            steps.push(LiqoAdmit { peering, epoch, envelope: Some(envelope.clone()) }.into());
        } else if self.record.request.is_some() {
            if self.is_stuck(self.record.done) || self.is_due() {
                steps.push(LiqoAdmit { peering, epoch, envelope: None }.into());
            }
        } else if self.is_due() {
            steps.push(LiqoChallenge { peering, epoch }.into());
        }
    }

    fn origin(&self, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.keys.peering, self.keys.epoch);
        if open_as_origin(self.snapshot, self.keys, steps) {
            return;
        }
        if self.record.identity.is_some() {
            if self.is_stuck(self.record.done) {
                steps.push(LiqoIdentity { peering, epoch, envelope: None }.into());
            }
        } else if self.record.challenge.is_some() && (self.is_stuck(self.record.request.is_some()) || self.is_due()) {
            steps.push(LiqoAnswer { peering, epoch, envelope: None }.into());
        }
    }

    /// A peering keeps the method it began with, whatever the setting is now.
    fn uses_token(&self) -> bool {
        let exchanges_keys = self.record.challenge.is_some() || self.record.request.is_some();
        self.record.minted.is_some() || (self.snapshot.service.authentication.by_token && !exchanges_keys)
    }

    /// Whether the origin needs another token: its token is old, or may be lost.
    fn is_mint_due(&self) -> bool {
        let Some(minted) = &self.record.minted else { return self.needed };
        if self.snapshot.is_reported(&ReportKey::Liqo(self.keys.peering)) {
            return false;
        }
        let age = self.snapshot.now_ms.saturating_sub(minted.at_ms);
        let sealed = self.record.sealed.as_ref();
        let in_vain = sealed.is_none_or(|sealed| sealed.epoch != self.keys.epoch || sealed.refused);
        self.snapshot.now_ms >= minted.next_ms || (in_vain && age >= MINT_PAUSE_MS)
    }

    /// Whether work that a lease waits for is not done and may be tried again.
    fn is_stuck(&self, done: bool) -> bool {
        !done && self.needed
    }

    /// Whether the newest message must be sealed (again).
    fn is_due(&self) -> bool {
        if !self.needed || self.snapshot.is_reported(&ReportKey::Liqo(self.keys.peering)) {
            return false;
        }
        self.may_be_lost(self.record.sealed.as_ref())
    }

    /// Whether the other side can no longer open a message.
    fn may_be_lost(&self, sealed: Option<&SealedMessage>) -> bool {
        sealed.is_none_or(|sealed| {
            sealed.epoch != self.keys.epoch || sealed.refused || sealed.expires_at_ms <= self.snapshot.now_ms
        })
    }

    /// Acknowledges opened envelopes again.
    fn acknowledge(&self, steps: &mut Vec<Step>) {
        let network = NetworkState::step(self.keys.side.other());
        for step in [Challenge::STEP, TenantRequest::STEP, IdentityParams::STEP, network] {
            for envelope in envelopes(self.snapshot, self.keys, step) {
                if self.keys.has_opened(&envelope.key) {
                    self.snapshot.discard(envelope, steps);
                }
            }
        }
    }
}
