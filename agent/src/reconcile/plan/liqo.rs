//! Steps of Liqo's key exchange over one peering.
//!
//! ```text
//! donor:  challenge ───────────▶ admit (tenant made) ─▶ …
//!              └─▶ liqo-challenge   ▲ liqo-tenant  └─▶ liqo-identity
//! origin:          answer ──────────┘                        └─▶ identity (made)
//! ```
//!
//! Or, where the donor lends by token, one message, and then another whenever the token has grown old:
//!
//! ```text
//! donor:  mint ──▶ … ──▶ mint ──▶ …
//!           └─▶ liqo-identity └─▶ liqo-identity
//! origin:          └─▶ identity       └─▶ identity
//! ```
//!
//! Where Liqo's own network carries pods, both sides also tell each other of that, whenever it changes: what is seen of
//! it comes from outside (`Live::networks`), as the tending of its objects found it.
//!
//! ```text
//! donor:  network ─▶ … ──▶ network ─▶ …
//!            └─▶ liqo-server  ▲ liqo-client
//! origin:          network ───┘
//! ```
//!
//! A message that came and was not opened is always worked on, whatever is remembered: so a side that lost its memory
//! is taught by the other. And the newest message of this side is sealed again where it may not have arrived, as long
//! as a lease waits for it.

use comity_proto::v1;
use comity_proto::v1::PeeringState;

use super::{Step, View, is_wanted};
use crate::delivery::DeliveryKind;
use crate::liqo::network::{NetworkStanding, NetworkState};
use crate::liqo::{Challenge, IdentityParams, TenantRequest, messages::Message as _};
use crate::model::side::Side;
use crate::state::record::{LiqoRecord, PeeringRecord, ReportKey, SealedMessage};

/// How long nothing is tried after a failure that would only repeat itself; leases are refused meanwhile.
const RETRY_AFTER_MS: u64 = 60_000;
/// At least this long between two tokens: one that the broker refuses is not followed by the next at once.
const MINT_PAUSE_MS: u64 = 10_000;

pub(super) fn plan(view: &View<'_>, directive: &v1::PeeringDirective, steps: &mut Vec<Step>) {
    let Some(peering) = &directive.peering else { return };
    let stands = matches!(
        peering.state(),
        PeeringState::Authenticating | PeeringState::Establishing | PeeringState::Established
    );
    let keys = view.records.peering(&peering.id, peering.epoch);
    if let (true, Some(keys)) = (stands, keys) {
        exchange(view, keys, steps);
    }
}

/// Where the exchange of a lease's peering stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// This side's half is there.
    Done,
    /// It comes.
    Waits,
    /// It does not: the code and the reason.
    Impossible(&'static str, String),
}

/// Whether a virtual node can be made over a peering.
pub(super) fn standing(view: &View<'_>, peering: &str) -> Standing {
    let epoch = view.directive(peering).and_then(|directive| directive.peering.as_ref()).map(|peering| peering.epoch);
    let keys = epoch.and_then(|epoch| view.records.peering(peering, epoch));
    if let Some(reason) = keys.and_then(|keys| impossible(view, keys)) {
        return Standing::Impossible("peer-cannot", reason);
    }
    match view.records.liqo.get(peering) {
        Some(record) => match failure(view, record) {
            _ if record.done && record.network.is_none() => Standing::Done,
            Some(message) => Standing::Impossible("liqo-refused", message.to_owned()),
            None if record.done => network_standing(view, record),
            None => Standing::Waits,
        },
        None => Standing::Waits,
    }
}

/// Whether pods of a virtual node would be reached, where that is for Liqo's network to do.
fn network_standing(view: &View<'_>, record: &LiqoRecord) -> Standing {
    let carrier = view.records.network_carrier(&record.liqo_id);
    match carrier.and_then(|carrier| view.live.networks.get(carrier)).map(|seen| &seen.standing) {
        Some(NetworkStanding::Ready { .. }) => Standing::Done,
        Some(NetworkStanding::Refused(reason)) => Standing::Impossible("liqo-refused", reason.clone()),
        Some(NetworkStanding::Waits(_)) | None => Standing::Waits,
    }
}

/// Whether this cluster leaves its pods to the gateways of its Liqo.
fn leaves_pods_to_liqo(view: &View<'_>) -> bool {
    view.network.is_some_and(|network| network.liqo_network)
}

/// What the two networks lack, once both are known.
fn impossible(view: &View<'_>, keys: &PeeringRecord) -> Option<String> {
    let remote = keys.remote.as_ref()?;
    let cluster = &remote.cluster;
    if remote.network.liqo_cluster_id.is_empty() {
        return Some(format!("cluster {cluster} has no Liqo that its agent uses; set liqo.enabled there"));
    }
    match (leaves_pods_to_liqo(view), remote.network.liqo_network) {
        (true, false) => {
            return Some(format!(
                "this cluster leaves pods to Liqo's gateways and cluster {cluster} does not; set liqo.network: liqo there, or comity here"
            ));
        }
        (false, true) => {
            return Some(format!(
                "cluster {cluster} leaves pods to Liqo's gateways and this cluster does not; set liqo.network: liqo here, or comity there"
            ));
        }
        _ => {}
    }
    // Where Liqo carries pods, this cluster's own fabric is enough to reach an API server.
    if view.service.needs_tun && !remote.network.tun && !remote.network.liqo_network {
        return Some(format!("the fabric of cluster {cluster} routes no pods; set fabric.mode: tun there"));
    }
    let checked = remote.network.check(view.network, &view.service.peer_networks);
    checked.err().map(|reason| format!("cluster {cluster}: {reason}"))
}

fn failure<'a>(view: &View<'_>, record: &'a LiqoRecord) -> Option<&'a str> {
    let failed = record.failed.as_ref()?;
    let recent = view.now_ms < failed.at_ms.saturating_add(RETRY_AFTER_MS);
    recent.then_some(failed.message.as_str())
}

/// Leases of virtual nodes over a peering that this side takes part in; the donor's only once it has admitted them.
fn wanting<'a>(view: &'a View<'_>, keys: &'a PeeringRecord) -> impl Iterator<Item = &'a v1::Lease> {
    let ours = |lease: &&v1::Lease| match keys.side {
        Side::Donor => view.records.donors.get(&lease.id).is_some_and(|record| !record.removed),
        Side::Origin => lease.origin == view.cluster,
    };
    let over_it =
        |lease: &&v1::Lease| lease.peering == keys.peering && DeliveryKind::of(lease) == DeliveryKind::VirtualNode;
    view.desired.leases.iter().filter(over_it).filter(|lease| is_wanted(lease)).filter(ours)
}

fn exchange(view: &View<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) {
    let record = view.records.liqo.get(&keys.peering);
    let can = match keys.side {
        Side::Donor => &view.service.lends,
        Side::Origin => &view.service.borrows,
    };
    // What is lent stays in use whether or not more can be lent.
    let can = can.is_ok() || record.is_some_and(|record| record.minted.is_some());
    let Some(remote) = keys.remote.as_ref().filter(|_| can && impossible(view, keys).is_none()) else { return };
    let wanted = wanting(view, keys).next().is_some();
    let Some(record) = record else {
        if wanted {
            begin(view, keys, steps);
        }
        return;
    };
    let own_id = view.network.map_or("", |network| network.liqo_cluster_id.as_str());
    let reinstalled = record.liqo_id != remote.network.liqo_cluster_id || record.own_liqo_id != own_id;
    if reinstalled || record.standing_network().is_some() != leaves_pods_to_liqo(view) {
        // One of the two was installed again, or the pods go another way: what was exchanged is of no use, and begins
        // again.
        steps.push(Step::LiqoRemove { peering: keys.peering.clone() });
        return;
    }
    if failure(view, record).is_none() {
        Exchange { view, keys, record, needed: wanting(view, keys).any(|lease| !lease.origin_ready) }.plan(steps);
    }
}

fn begin(view: &View<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) {
    let (peering, epoch) = (keys.peering.clone(), keys.epoch);
    match keys.side {
        Side::Donor if view.service.authentication.by_token => steps.push(Step::LiqoMint { peering, epoch }),
        Side::Donor => match unopened(view, keys, TenantRequest::STEP) {
            // The origin remembers an exchange that this side has lost.
            Some(envelope) => steps.push(Step::LiqoAdmit { peering, epoch, envelope: Some(envelope.clone()) }),
            None => steps.push(Step::LiqoChallenge { peering, epoch }),
        },
        Side::Origin => {
            open_as_origin(view, keys, steps);
        }
    }
}

fn envelopes<'a>(
    view: &'a View<'_>,
    keys: &'a PeeringRecord,
    step: &'static str,
) -> impl Iterator<Item = &'a v1::Envelope> {
    view.desired.envelopes.iter().filter(move |envelope| {
        envelope.peering == keys.peering
            && envelope.epoch == keys.epoch
            && envelope.lease.is_empty()
            && envelope.step == step
    })
}

fn unopened<'a>(view: &'a View<'_>, keys: &'a PeeringRecord, step: &'static str) -> Option<&'a v1::Envelope> {
    envelopes(view, keys, step)
        .filter(|envelope| !keys.has_opened("", step, envelope.sequence))
        .max_by_key(|envelope| envelope.sequence)
}

/// Opens what the donor sent: whether there was something.
fn open_as_origin(view: &View<'_>, keys: &PeeringRecord, steps: &mut Vec<Step>) -> bool {
    let (peering, epoch) = (keys.peering.clone(), keys.epoch);
    if let Some(envelope) = unopened(view, keys, IdentityParams::STEP) {
        steps.push(Step::LiqoIdentity { peering, epoch, envelope: Some(envelope.clone()) });
    } else if let Some(envelope) = unopened(view, keys, Challenge::STEP) {
        steps.push(Step::LiqoAnswer { peering, epoch, envelope: Some(envelope.clone()) });
    } else {
        return false;
    }
    true
}

struct Exchange<'a> {
    view: &'a View<'a>,
    keys: &'a PeeringRecord,
    record: &'a LiqoRecord,
    /// A lease waits for it.
    needed: bool,
}

impl Exchange<'_> {
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

    /// The other side's word first; then this side's, where it has changed or may not have arrived.
    fn network(&self, steps: &mut Vec<Step>) {
        let Some(network) = self.record.standing_network() else { return };
        let (peering, epoch) = (self.keys.peering.clone(), self.keys.epoch);
        if let Some(envelope) = unopened(self.view, self.keys, NetworkState::step(self.keys.side.other())) {
            steps.push(Step::LiqoNetwork { peering, epoch, envelope: Some(envelope.clone()) });
            return;
        }
        let carries = self.view.records.network_carrier(&self.record.liqo_id) == Some(&peering);
        let seen = self.view.live.networks.get(&peering).filter(|_| carries);
        let Some(local) = seen.and_then(|seen| seen.local.as_ref()) else { return };
        let changed = network.told.as_ref() != Some(local);
        let in_vain = self.needed && self.may_be_lost(network.sealed.as_ref());
        if (changed || in_vain) && !self.view.is_reported(&ReportKey::LiqoNetwork(peering.clone())) {
            steps.push(Step::LiqoNetwork { peering, epoch, envelope: None });
        }
    }

    fn donor(&self, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.keys.peering.clone(), self.keys.epoch);
        if self.goes_by_token() {
            if self.is_mint_due() {
                steps.push(Step::LiqoMint { peering, epoch });
            }
        } else if let Some(envelope) = unopened(self.view, self.keys, TenantRequest::STEP) {
            steps.push(Step::LiqoAdmit { peering, epoch, envelope: Some(envelope.clone()) });
        } else if self.record.request.is_some() {
            if self.is_stuck(self.record.done) || self.is_due() {
                steps.push(Step::LiqoAdmit { peering, epoch, envelope: None });
            }
        } else if self.is_due() {
            steps.push(Step::LiqoChallenge { peering, epoch });
        }
    }

    fn origin(&self, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.keys.peering.clone(), self.keys.epoch);
        if open_as_origin(self.view, self.keys, steps) {
            return;
        }
        if self.record.identity.is_some() {
            if self.is_stuck(self.record.done) {
                steps.push(Step::LiqoIdentity { peering, epoch, envelope: None });
            }
        } else if self.record.challenge.is_some() && (self.is_stuck(self.record.request.is_some()) || self.is_due()) {
            steps.push(Step::LiqoAnswer { peering, epoch, envelope: None });
        }
    }

    /// A peering stays as it began, whatever the setting is now.
    fn goes_by_token(&self) -> bool {
        let exchanges_keys = self.record.challenge.is_some() || self.record.request.is_some();
        self.record.minted.is_some() || (self.view.service.authentication.by_token && !exchanges_keys)
    }

    /// Whether the origin needs another token: the one it has grew old, or it cannot have got it.
    fn is_mint_due(&self) -> bool {
        let Some(minted) = &self.record.minted else { return self.needed };
        if self.view.is_reported(&ReportKey::Liqo(self.keys.peering.clone())) {
            return false;
        }
        let age = self.view.now_ms.saturating_sub(minted.at_ms);
        let sealed = self.record.sealed.as_ref();
        let in_vain = sealed.is_none_or(|sealed| sealed.epoch != self.keys.epoch || sealed.refused);
        self.view.now_ms >= minted.next_ms || (in_vain && age >= MINT_PAUSE_MS)
    }

    /// Work that failed, and may be tried again.
    fn is_stuck(&self, done: bool) -> bool {
        !done && self.needed
    }

    /// Whether the newest message has to be sealed (again).
    fn is_due(&self) -> bool {
        if !self.needed || self.view.is_reported(&ReportKey::Liqo(self.keys.peering.clone())) {
            return false;
        }
        self.may_be_lost(self.record.sealed.as_ref())
    }

    /// Whether a message cannot be opened, or is not there any more.
    fn may_be_lost(&self, sealed: Option<&SealedMessage>) -> bool {
        sealed.is_none_or(|sealed| {
            sealed.epoch != self.keys.epoch || sealed.refused || sealed.expires_at_ms <= self.view.now_ms
        })
    }

    /// Says again that an envelope was opened.
    fn acknowledge(&self, steps: &mut Vec<Step>) {
        let network = NetworkState::step(self.keys.side.other());
        for step in [Challenge::STEP, TenantRequest::STEP, IdentityParams::STEP, network] {
            for envelope in envelopes(self.view, self.keys, step) {
                if self.keys.has_opened("", step, envelope.sequence) {
                    self.view.discard(envelope, steps);
                }
            }
        }
    }
}
