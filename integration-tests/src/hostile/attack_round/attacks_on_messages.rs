//! Attacks on messages: replayed, altered, mislabelled, malformed and far too large ones.

use comity_proto::v1;
use prost::Message as _;

use super::AttackRound;
use crate::chaos::dice::Dice;
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::broker_core::AckWhim;
use crate::watch::now_ms;

/// Largest text that the broker puts into a message.
const HUGE_TEXT_BYTES: usize = 8 << 20;
/// Peerings and leases in a huge desired state.
const HUGE_LIST: u64 = 20_000;

impl AttackRound<'_> {
    /// Either agent.
    pub(crate) fn victim(&mut self) -> &'static str {
        if self.dice.one_in(2) { ORIGIN_CLUSTER } else { DONOR_CLUSTER }
    }

    /// Sends an agent what it was sent at some time before, with the old revision or a new one. No lease that ended may
    /// come back.
    pub(crate) fn replay_old_state(&mut self) {
        let (victim, keeps_revision) = (self.victim(), self.dice.one_in(2));
        let sent = self.federation.broker.sent(victim);
        let Some(old) = sent.get(self.dice.index(sent.len())).cloned() else { return };
        let held: Vec<String> = self.federation.broker.read(|books| books.leases.keys().cloned().collect());
        for lease in old.leases.iter().filter(|lease| !held.contains(&lease.id)) {
            self.ledger.forbid(&lease.id, "it ended before");
        }
        self.federation.broker.tamper(move |cluster, desired| {
            if cluster == victim {
                let revision = if keeps_revision { old.revision } else { desired.revision };
                *desired = v1::DesiredState { revision, ..old.clone() };
            }
        });
    }

    /// Delivers every envelope that it relayed once more, in another order.
    pub(crate) fn replay_envelopes(&mut self) {
        let mut envelopes = self.federation.broker.envelopes();
        for index in (1..envelopes.len()).rev() {
            envelopes.swap(index, self.dice.index(index + 1));
        }
        self.federation.broker.tamper(move |cluster, desired| {
            desired.envelopes.extend(envelopes.iter().filter(|envelope| envelope.to == cluster).cloned());
        });
    }

    /// Lets a new epoch and a new lease go through while it changes one thing in each envelope.
    async fn with_altered_envelopes(&mut self, mut alter: impl FnMut(&mut Dice, &mut v1::Envelope) + Send + 'static) {
        let mut dice = self.dice.split();
        self.federation.broker.tamper(move |_, desired| {
            desired.envelopes.iter_mut().for_each(|envelope| alter(&mut dice, envelope));
        });
        let peering = self.peering();
        self.with_peering(&peering, |entry| entry.begin_epoch(entry.peering.epoch + 1));
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        self.invent(&peering, placement, |_| {});
        self.handshake(&peering).await;
    }

    /// Flips bytes of envelopes.
    pub(crate) async fn corrupt_envelopes(&mut self) {
        self.with_altered_envelopes(|dice, envelope| {
            let bytes = if dice.one_in(2) { &mut envelope.ciphertext } else { &mut envelope.encapsulated_key };
            let at = dice.index(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1;
            }
            if dice.one_in(4) {
                bytes.truncate(at);
            }
        })
        .await;
    }

    /// Labels envelopes as something else.
    pub(crate) async fn cross_envelopes(&mut self) {
        let (lease, peering) = (self.lease.clone(), self.peering());
        self.with_altered_envelopes(move |dice, envelope| match dice.within(0..=6) {
            0 => envelope.lease.clone_from(&lease),
            1 => envelope.lease.clear(),
            2 => envelope.step = ["psk", "proof", "credential", "liqo-tenant", "x"][dice.index(5)].to_owned(),
            3 => envelope.sequence = dice.bits(),
            4 => std::mem::swap(&mut envelope.from, &mut envelope.to),
            5 => envelope.peering.clone_from(&peering),
            _ => envelope.epoch = envelope.epoch.wrapping_add(1),
        })
        .await;
    }

    /// Names other epochs than both sides are in, sometimes while they shake hands.
    pub(crate) fn wrong_epoch(&mut self) {
        if self.dice.one_in(2) {
            let peering = self.peering();
            self.with_peering(&peering, |entry| entry.begin_epoch(entry.peering.epoch.saturating_add(1)));
        }
        let (victim, epoch) = (self.victim(), u32::try_from(self.dice.within(0..=u64::from(u32::MAX))).unwrap_or(0));
        self.federation.broker.tamper(move |cluster, desired| {
            let peerings = desired.peerings.iter_mut().filter_map(|directive| directive.peering.as_mut());
            peerings.filter(|_| cluster == victim).for_each(|peering| peering.epoch = epoch);
        });
    }

    /// Tells the two sides different things about their peering.
    pub(crate) fn contradict(&mut self) {
        let (victim, state) = (self.victim(), i32::try_from(self.dice.within(0..=9)).unwrap_or(0));
        self.federation.broker.tamper(move |cluster, desired| {
            for directive in desired.peerings.iter_mut().filter(|_| cluster == victim) {
                let Some(peering) = &mut directive.peering else { continue };
                peering.state = state;
                std::mem::swap(&mut peering.origin, &mut peering.donor);
                std::mem::swap(&mut directive.origin_keys, &mut directive.donor_keys);
            }
        });
    }

    /// Says that nothing exists. It may: a broker can always end leases.
    pub(crate) fn say_nothing_exists(&mut self) {
        let victim = self.victim();
        self.federation.broker.tamper(move |cluster, desired| {
            if cluster == victim {
                *desired = v1::DesiredState { revision: desired.revision, ..v1::DesiredState::default() };
            }
        });
    }

    /// Ends the honest lease.
    pub(crate) fn end_lease(&mut self) {
        let lease = self.lease.clone();
        self.federation.broker.change(|books| books.release(&lease));
    }

    /// Refuses or withholds acknowledgements of a new lease's reports.
    pub(crate) fn lie_in_acknowledgements(&mut self) {
        let acks = if self.dice.one_in(2) { AckWhim::Refuse } else { AckWhim::Withhold };
        self.federation.broker.lie(|whims| whims.acks = acks);
        let (peering, placement) = (self.peering(), self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1)));
        self.invent(&peering, placement, |_| {});
    }

    /// Sends very long texts or lists.
    pub(crate) fn send_too_much(&mut self) {
        let (victim, is_text) = (self.victim(), self.dice.one_in(2));
        self.federation.broker.tamper(move |cluster, desired| {
            if cluster != victim {
                return;
            }
            if is_text {
                let text = "x".repeat(HUGE_TEXT_BYTES);
                desired
                    .leases
                    .iter_mut()
                    .for_each(|lease| (lease.message, lease.tenant) = (text.clone(), text.clone()));
            } else {
                let peering = |number| v1::Peering {
                    id: format!("peer-{}", 1_000_000 + number),
                    origin: "somebody".to_owned(),
                    donor: "else".to_owned(),
                    ..v1::Peering::default()
                };
                let directive =
                    |number| v1::PeeringDirective { peering: Some(peering(number)), ..v1::PeeringDirective::default() };
                desired.peerings.extend((0..HUGE_LIST).map(directive));
            }
        });
    }

    /// Sends bytes that are no message, or one with text that is not UTF-8.
    pub(crate) fn send_garbage(&mut self) {
        let victim = self.victim();
        let mut bytes: Vec<u8> = (0..self.dice.within(1..=2_000)).map(|_| self.dice.bits().to_le_bytes()[0]).collect();
        if self.dice.one_in(2) {
            let lease = v1::Lease { id: "lease-1".to_owned(), tenant: "tenant".to_owned(), ..v1::Lease::default() };
            let state = v1::DesiredState { revision: 1, leases: vec![lease], ..v1::DesiredState::default() };
            let body = v1::broker_message::Body::Desired(state);
            bytes = v1::BrokerMessage { body: Some(body) }.encode_to_vec();
            // The last bytes are the text.
            bytes.iter_mut().rev().take(3).for_each(|byte| *byte = 0xff);
        }
        self.federation.broker.lie(|whims| drop(whims.raw.insert(victim.to_owned(), vec![bytes])));
    }

    /// Sends values of enums that nobody has defined.
    pub(crate) fn send_unknown_values(&mut self) {
        let (victim, value) = (self.victim(), i32::try_from(self.dice.within(50..=2_000_000_000)).unwrap_or(50));
        let which = self.dice.within(0..=3);
        self.federation.broker.tamper(move |cluster, desired| {
            if cluster != victim {
                return;
            }
            match which {
                0 => desired.leases.iter_mut().for_each(|lease| lease.state = value),
                1 => desired.leases.iter_mut().for_each(|lease| (lease.delivery, lease.end_reason) = (value, value)),
                2 => desired
                    .peerings
                    .iter_mut()
                    .filter_map(|held| held.peering.as_mut())
                    .for_each(|peering| peering.state = value),
                _ => desired
                    .peerings
                    .iter_mut()
                    .filter_map(|held| held.origin_keys.as_mut())
                    .for_each(|keys| keys.side = value),
            }
        });
    }

    /// Sends ids that are none.
    pub(crate) fn send_malformed_ids(&mut self) {
        const IDS: [&str; 6] = ["", "lease-01", "../../etc", "lease-99999999999999999999999", "peer-1\u{0}", "LEASE-1"];
        let (victim, id) = (self.victim(), IDS[self.dice.index(IDS.len())]);
        let (is_lease, now) = (self.dice.one_in(2), now_ms());
        self.federation.broker.tamper(move |cluster, desired| {
            if cluster != victim {
                return;
            }
            for lease in &mut desired.leases {
                *(if is_lease { &mut lease.id } else { &mut lease.peering }) = id.to_owned();
                lease.expires_at_ms = now;
            }
            for placement in desired.leases.iter_mut().filter_map(|lease| lease.placement.as_mut()) {
                placement.nodes.iter_mut().for_each(|node| node.node = id.to_owned());
            }
        });
    }
}
